"""Interfaces through which extensions and approvers take part in a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from zot.config.policy import NoSubject, Subject
from zot.errors import NoSuchCommand, UserError
from zot.events import AgentEvent
from zot.messages import CallBlock
from zot.store import GuardSet, PermissionGranted
from zot.tools.base import Tool

if TYPE_CHECKING:
    from zot.panels import CommandAnswer, CommandInfo, ExtensionInfo, SessionPanels


class CallDecision(msgspec.Struct, frozen=True):
    """Decision about a tool call: run it with ``args``, or refuse it. ``note`` is added to the result."""

    args: dict[str, Any]
    refusal: str | None = None
    note: str = ""


class MessageDecision(msgspec.Struct, frozen=True):
    """Decision about the model's text: show ``text``, or block it in the name of ``extension``."""

    text: str
    refusal: str | None = None
    extension: str = ""


class Extensions(Protocol):
    """Extensions of a session: they observe the agent, intercept its steps and provide tools.

    Cancelling a pending decision ends it at once.
    """

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        """Register ``show``, which sends events outside of any run to all subscribers of the session."""

    def recall(self, guarded: GuardSet) -> None:
        """Restore a guard from the journal. Its intercepts stay blocked until it connects.

        A guard without intercepts was dismissed.
        """

    def is_connected(self, name: str) -> bool:
        """True if an extension of this name is connected, not merely expected."""

    def start(self) -> None:
        """Start the extensions without waiting. Idempotent; `ready` does it too."""

    async def close(self) -> None:
        """Stop the extensions. Idempotent."""

    def listed(self) -> Sequence[ExtensionInfo]:
        """Return the extensions with their states, in order, also those that do not run."""

    def commands(self) -> Sequence[CommandInfo]:
        """Return the commands available now."""

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run a command. Raise NoSuchCommand if no extension has it, UserError if it fails."""

    @property
    def panels(self) -> SessionPanels:
        """The panels that are open now."""

    @property
    def attentive(self) -> bool:
        """True if the session has extensions: then all events must be delivered before the next decision."""

    @property
    def holds_messages(self) -> bool:
        """True while an extension intercepts messages: the model's text is then shown only after its decision."""

    def text_held(self) -> None:
        """Notify clients that an extension withholds the model's text. Called once per message."""

    def tools(self) -> Sequence[Tool]:
        """Return the tools offered now. Called before every model call."""

    async def ready(self) -> None:
        """Wait, within its own deadline, until a first prompt may begin."""

    async def turn_starting(self, step: int) -> str | None:
        """Return why the turn must not begin; None to allow it."""

    async def tool_called(self, call: CallBlock, args: dict[str, Any]) -> CallDecision:
        """Decide about a call, before policy and approval."""

    async def message_written(self, text: str) -> MessageDecision:
        """Decide about the model's finished text. Called only while `holds_messages`."""

    def observe(self, events: Sequence[AgentEvent]) -> None:
        """Receive events, in order, after they were recorded."""


class ApprovalQuestion(msgspec.Struct, frozen=True):
    """A call that a person must approve, with its arguments, subject and a one-line summary."""

    call: CallBlock
    args: dict[str, Any]
    summary: str
    subject: Subject = NoSubject()


class ApprovalVerdict(msgspec.Struct, frozen=True):
    """A person's answer: ``refusal`` says why the call must not run; None allows it as asked."""

    question: ApprovalQuestion
    refusal: str | None


class Approver(Protocol):
    """Decides by rule whether a call may run, must not, or needs a person's approval."""

    @property
    def timeout_s(self) -> float:
        """Time a person has to answer."""

    def judge(self, call: CallBlock, args: dict[str, Any]) -> ApprovalQuestion | str | None:
        """Return None to allow a call, the reason to deny it as the model reads it, or the question for a person."""

    def remember(self, question: ApprovalQuestion) -> PermissionGranted | None:
        """Allow this call permanently. Return the row to record; None if it cannot be recorded."""

    def recall(self, allowed: PermissionGranted) -> None:
        """Restore a recorded permission, or its revocation."""

    def remembered(self) -> Sequence[PermissionGranted]:
        """Return the permanent permissions."""

    def forget(self, allowed: PermissionGranted) -> PermissionGranted:
        """Return the revocation, to be recorded and recalled. Raise UserError if it is not remembered."""


class NoExtensions:
    """No extensions."""

    attentive = False
    holds_messages = False

    def attach(self, show: Callable[[Sequence[AgentEvent]], None]) -> None:
        return

    def recall(self, guarded: GuardSet) -> None:
        return

    def is_connected(self, name: str) -> bool:
        return False

    def start(self) -> None:
        return

    async def close(self) -> None:
        return

    def listed(self) -> Sequence[ExtensionInfo]:
        return ()

    def commands(self) -> Sequence[CommandInfo]:
        return ()

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        raise NoSuchCommand(f"there is no command named {name!r}; no extension has any")

    @property
    def panels(self) -> SessionPanels:
        from zot.panels import SessionPanels  # Imported lazily: needed only with extensions.

        return SessionPanels()

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
    """An approver that allows every call."""

    timeout_s = 0.0

    def judge(self, call: CallBlock, args: dict[str, Any]) -> ApprovalQuestion | str | None:
        return None

    def remember(self, question: ApprovalQuestion) -> PermissionGranted | None:
        return None

    def recall(self, allowed: PermissionGranted) -> None:
        return

    def remembered(self) -> Sequence[PermissionGranted]:
        return ()

    def forget(self, allowed: PermissionGranted) -> PermissionGranted:
        raise UserError("no such permission is stored")
