"""What others may decide about a run: extensions, and whoever approves tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from zot.config.policy import Nothing, Subject
from zot.errors import NoSuchCommand, UserError
from zot.events import AgentEvent
from zot.messages import CallBlock
from zot.store import Allowed, Guarded
from zot.tools.base import Tool

if TYPE_CHECKING:
    from zot.panels import CommandAnswer, CommandInfo


class CallDecision(msgspec.Struct, frozen=True):
    """What becomes of a tool call: run with ``args``, or refused for a reason. ``note`` goes into the result."""

    args: dict[str, Any]
    refusal: str | None = None
    note: str = ""


class MessageDecision(msgspec.Struct, frozen=True):
    """What becomes of the model's text: shown as ``text``, or blocked by ``extension`` for a reason."""

    text: str
    refusal: str | None = None
    extension: str = ""


class Extensions(Protocol):
    """What runs beside the agent and may watch it, guard it and give it tools. A cancelled question ends at once."""

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        """Take what shows an event, which is no part of any run, to everybody who follows the session."""

    def recall(self, guarded: Guarded) -> None:
        """Hear who guards the session and may be away. What it guards stays blocked until it is back.

        One that is recalled with nothing to guard was dismissed.
        """

    def attends(self, name: str) -> bool:
        """Tell if there is an extension of this name, and not only one that is missed."""

    def start(self) -> None:
        """Start what there is, without waiting for it. Once is enough; `ready` does it, too."""

    async def close(self) -> None:
        """End what was started. Any number of times."""

    def commands(self) -> Sequence[CommandInfo]:
        """Return the commands that there are now."""

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run a command. Raise NoSuchCommand if there is none of that name, UserError if it fails."""

    def press(self, panel_id: str, key: str, text: str) -> None:
        """Let an open panel have a key. Raise UserError if there is no such panel or key."""

    def close_panel(self, panel_id: str) -> None:
        """Close a panel. Raise UserError if it is not open."""

    @property
    def attentive(self) -> bool:
        """True if there is anybody to ask: then everything that happened is to be told before the next question."""

    @property
    def holds_messages(self) -> bool:
        """True while an extension intercepts messages: the model's text is then shown only after its decision."""

    def text_held(self) -> None:
        """Show clients who holds back the text that the model is writing. Called once a message."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools on offer now. Asked before every model call."""

    async def ready(self) -> None:
        """Wait, within a deadline of its own, until a first prompt may begin."""

    async def turn_starting(self, step: int) -> str | None:
        """Return why the turn must not begin; None to let it."""

    async def tool_called(self, call: CallBlock, args: dict[str, Any]) -> CallDecision:
        """Decide about a call before anybody else is asked."""

    async def message_written(self, text: str) -> MessageDecision:
        """Decide about the model's finished text. Asked only while `holds_messages`."""

    def observe(self, events: Sequence[AgentEvent]) -> None:
        """Hear what happened, in order, after it was recorded."""


class Question(msgspec.Struct, frozen=True):
    """A call that a person must decide about: what would run, on what, and one line that tells what that does."""

    call: CallBlock
    args: dict[str, Any]
    summary: str
    subject: Subject = Nothing()


class Answer(msgspec.Struct, frozen=True):
    """What a person decided: why the call must not run, or None to let it run on what was asked about."""

    question: Question
    refusal: str | None


class Approver(Protocol):
    """Says by rule whether a call may run, or that a person must be asked."""

    @property
    def timeout_s(self) -> float:
        """How long a person has to answer."""

    def judge(self, call: CallBlock, args: dict[str, Any]) -> Question | str | None:
        """Return None to let a call run, why it must not, fit for the model to read, or what to ask a person."""

    def remember(self, question: Question) -> Allowed | None:
        """A person allowed this for good. Return what is to be recorded of that; None if it cannot be."""

    def recall(self, allowed: Allowed) -> None:
        """A person allowed this for good, or revoked that, in an earlier life of the session."""

    def remembered(self) -> Sequence[Allowed]:
        """Return what a person allowed for good."""

    def forget(self, allowed: Allowed) -> Allowed:
        """Return what revokes it, to be recorded and recalled. Raise UserError if it is not remembered."""


class NoExtensions:
    """Nobody watches, nobody guards."""

    attentive = False
    holds_messages = False

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        return

    def recall(self, guarded: Guarded) -> None:
        return

    def attends(self, name: str) -> bool:
        return False

    def start(self) -> None:
        return

    async def close(self) -> None:
        return

    def commands(self) -> Sequence[CommandInfo]:
        return ()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        raise NoSuchCommand(f"there is no command named {name!r}; no extension has any")

    def press(self, panel_id: str, key: str, text: str) -> None:
        raise UserError(f"no panel {panel_id!r} is open")

    def close_panel(self, panel_id: str) -> None:
        raise UserError(f"no panel {panel_id!r} is open")

    def text_held(self) -> None:
        return

    def tools(self) -> Sequence[Tool]:
        return ()

    async def ready(self) -> None:
        return

    async def turn_starting(self, step: int) -> str | None:
        return None

    async def tool_called(self, call: CallBlock, args: dict[str, Any]) -> CallDecision:
        return CallDecision(args)

    async def message_written(self, text: str) -> MessageDecision:
        return MessageDecision(text)

    def observe(self, events: Sequence[AgentEvent]) -> None:
        return


class AllowAll:
    """Every call may run."""

    timeout_s = 0.0

    def judge(self, call: CallBlock, args: dict[str, Any]) -> Question | str | None:
        return None

    def remember(self, question: Question) -> Allowed | None:
        return None

    def recall(self, allowed: Allowed) -> None:
        return

    def remembered(self) -> Sequence[Allowed]:
        return ()

    def forget(self, allowed: Allowed) -> Allowed:
        raise UserError("that is not remembered")


class Jobs(Protocol):
    """What tools have left running."""

    @property
    def holds(self) -> bool:
        """True while there is anything that `close` would end or remove."""

    async def end(self, owner: str) -> None:
        """End what was started for ``owner``, a run or a session."""

    async def close(self) -> None:
        """End everything. Any number of times."""

    def kill(self) -> None:
        """Kill everything at once, from any thread: the process is about to end."""


class NoJobs:
    """Nothing is ever left running."""

    holds = False

    async def end(self, owner: str) -> None:
        return

    async def close(self) -> None:
        return

    def kill(self) -> None:
        return
