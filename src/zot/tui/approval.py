"""Questions about tool calls: shown in full, answered once, and gone when somebody else has answered."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from zot.conversation import Decision
from zot.events import AgentEvent, ApprovalAnswer, ApprovalRequest, Done, ToolProgress, ToolResult, TurnEnd, TurnStart
from zot.printable import printable
from zot.tui.about import changes
from zot.tui.question import Question
from zot.tui.terminal import Option

if TYPE_CHECKING:
    from zot.tui.app import ZotApp

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
        body, diff = _about(request)
        hint = f"press y, a or n; Esc is n; until {request.deadline[11:19]} UTC"
        question = Question(f"{request.tool} wants to run; may it?", _OPTIONS, body=body, diff=diff, hint=hint)
        self._open[request.id] = question
        return self._asked(request, question)

    async def _asked(self, request: ApprovalRequest, question: Question) -> None:
        """Ask, and tell the session what was decided."""
        call = self._app.story.running
        if call is not None:
            call.wait(waits=True)
        self._app.busy("waiting for you")
        decision: Decision | Literal["gone"] | None = await self._app.asking.put(question)
        self._app.busy("")
        self._open.pop(request.id, None)
        if call is not None:
            call.wait(waits=False)
        if decision != "gone":
            await self._app.conversation.approve(request.id, decision or "reject")

    def hear(self, event: AgentEvent) -> None:
        """What goes on has been decided: here, elsewhere, or by its deadline."""
        if isinstance(event, ApprovalAnswer | ToolProgress | ToolResult | TurnStart | TurnEnd | Done):
            for question in self._open.values():
                question.close("gone")
        if isinstance(event, ApprovalAnswer) and event.by:
            self._app.note(f"{event.decision.replace('_', ' ')}, by {event.by}")


def _about(request: ApprovalRequest) -> tuple[str, list[tuple[str, str]]]:
    """Return what a call would do, in full: a command, a diff, or its arguments."""
    match request.args:
        case {"command": str(command)}:
            return command, []
        case {"path": str(path)} if diff := [*changes(request.args)]:
            return printable(path), diff
        case _:
            return f"{printable(request.summary)}\n{_arguments(request)}", []


def _arguments(request: ApprovalRequest) -> str:
    return msgspec.json.format(msgspec.json.encode(request.args), indent=2).decode()
