"""Questions about tool calls: shown in full, answered once, and gone when somebody else has answered."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal

from zot.events import AgentEvent, ApprovalAnswer, ApprovalRequest
from zot.text import printable
from zot.ui.conversation import Decision
from zot.ui.terminal.call_text import Decided, in_full, until
from zot.ui.terminal.questions import Question
from zot.ui.terminal.terminal import Option

if TYPE_CHECKING:
    from zot.ui.terminal.app import ZotApp

_OPTIONS: list[Option[Decision]] = [
    Option("allow_once", "allow it this time", "y"),
    Option("allow_always", "allow it for the rest of the session", "a"),
    Option("reject", "do not allow it", "n"),
]


class Approvals:
    """The questions that are open on this screen."""

    def __init__(self, app: ZotApp) -> None:
        self._app = app
        self._open: dict[str, Question] = {}

    def ask(self, request: ApprovalRequest) -> Coroutine[Any, Any, None]:
        """Have a question, which `hear` can take back from now on; what is returned asks it."""
        hint = f"until {until(request)}; press y, a or n; Esc is n"
        title = f"{request.tool} wants to run; may it?"
        question = Question(title, _OPTIONS, body=_about(request), diff=in_full(request), hint=hint)
        self._open[request.id] = question
        return self._asked(request, question)

    async def _asked(self, request: ApprovalRequest, question: Question) -> None:
        """Ask, and tell the session what was decided."""
        call = self._app.story.running
        if call is not None:
            call.wait(waits=True)
        with self._app.busy("waiting for you"):
            decision: Decision | Literal["gone"] | None = await self._app.asking.put(question)
            self._open.pop(request.id, None)
        if call is not None:
            call.wait(waits=False)
        if decision != "gone":
            await self._app.conversation.approve(request.id, decision or "reject")

    def hear(self, event: AgentEvent) -> None:
        """What goes on has been decided: here, elsewhere, or by its deadline."""
        if isinstance(event, Decided):
            for question in self._open.values():
                question.close("gone")
        if isinstance(event, ApprovalAnswer) and event.by:
            self._app.note(f"{event.decision.replace('_', ' ')}, by {event.by}")


def _about(request: ApprovalRequest) -> str:
    """Return what stands above what a call would do: where it does it. Nothing above a command."""
    match request.args:
        case {"command": str()}:
            return ""
        case {"path": str(path)} if not _is_at(request.summary, f"{request.tool}: {os.path.normpath(path)}"):
            return f"{printable(request.summary)}\nwritten as {printable(path)}"
        case _:
            return printable(request.summary)


def _is_at(summary: str, place: str) -> bool:
    """True if a summary, in which a size may stand behind the place, tells of this place."""
    return summary.rpartition(" (")[0] == place or summary == place
