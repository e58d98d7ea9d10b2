"""Conversation and Home: the interfaces between a front end and its sessions, local or remote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from zot.events import Decision, QuestionAction, SessionState
from zot.messages import Counters, ImageBlock, PastMessage
from zot.panels import CommandAnswer, CommandInfo, ResourceInfo

if TYPE_CHECKING:  # Imported lazily: a front end draws its first frame before it opens a session.
    from zot.session.history import Subscriber


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that the user can choose, of the current provider or of another configured one."""

    provider: str
    id: str
    name: str = ""
    context_window: int = 0


class AllowedCall(msgspec.Struct, frozen=True):
    """A tool call allowed for the rest of the session: ``tool``, and its command or path."""

    tool: str
    subject: str


class SideReply(msgspec.Struct, frozen=True):
    """The answer to a side question, and the tokens that it used."""

    text: str
    usage: Counters


class RewindResult(msgspec.Struct, frozen=True):
    """The number of messages left by a rewind, the files restored as pairs of path and change, and the row to rewind
    to that undoes it."""

    messages: int
    files: Sequence[tuple[str, str]]
    undo: int


class Conversation(Protocol):
    """One session. Methods raise UserError for a request that cannot be met; subscribers receive the events."""

    def follow(self, subscriber: Subscriber) -> Callable[[], None]:
        """Subscribe to the events: from the end of the `past` read just before, else from now on.

        Return the function that unsubscribes.
        """

    @property
    def is_reachable(self) -> bool:
        """False while the connection to the session is down and being restored."""

    async def state(self) -> SessionState:
        """Return the session's current state."""

    async def messages(self) -> Sequence[PastMessage]:
        """Return the transcript."""

    async def past(self) -> Sequence[PastMessage]:
        """Return the transcript before the active run, or all of it when idle: `follow` delivers the rest."""

    async def images(self, place: str) -> Sequence[ImageBlock]:
        """Return the images of a tool result, by its call id, or of a user message, by its time.

        Return none that are unavailable.
        """

    async def prompt(
        self, text: str, images: Sequence[ImageBlock] = (), *, unsaid: Callable[[], None] = lambda: None
    ) -> None:
        """Enqueue a prompt. ``unsaid`` is called if it turns out that the prompt can never run."""

    async def steer(self, text: str, images: Sequence[ImageBlock] = (), *, name: str = "") -> None:
        """Add a message to the running prompt before its next model call. `withdraw` accepts its ``name``."""

    async def withdraw(self, name: str) -> None:
        """Withdraw a steering message. Raise UserError if the model has already received it."""

    async def retry(self) -> None:
        """Run the newest prompt again, which failed, without repeating its message."""

    async def abort(self) -> None:
        """Abort the active run. Does nothing when idle."""

    async def approve(self, request: str, decision: Decision) -> None: ...

    async def answer(self, request: str, action: QuestionAction, content: Mapping[str, Any]) -> None:
        """Answer a question of a tool."""

    async def remembered(self) -> Sequence[AllowedCall]:
        """Return the tool calls that are allowed for the rest of the session."""

    async def forget(self, one: AllowedCall) -> None:
        """Revoke a remembered approval."""

    async def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, once these have had time to register them."""

    async def resources(self) -> Sequence[ResourceInfo]:
        """Return the resources of MCP servers that prompts can mention."""

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run an extension's command; return the action that it requests."""

    async def send_key(self, panel_id: str, key: str, text: str = "") -> None:
        """Send a key to an open panel."""

    async def close_panel(self, panel_id: str) -> None: ...

    async def reload_extensions(self) -> Sequence[str]:
        """Reload the extensions from disk, all or none; return the names of the running ones."""

    async def models(self) -> Sequence[ModelInfo]:
        """Return the available models, those of the current provider first."""

    async def use_model(self, model: ModelInfo) -> None:
        """Switch models, from the next model call on."""

    async def lock(self, *, locked: bool) -> None:
        """Confine the tools to the working directory, or lift that."""

    async def compact(self) -> None: ...

    async def undo_compact(self) -> None:
        """Restore the messages that the newest compaction replaced."""

    async def rewind(self, messages: int, *, files: bool = True, preview: bool = False) -> RewindResult:
        """Keep the first ``messages`` and restore the files that tools have changed since; with ``preview``, only
        return what would change."""

    async def clear(self) -> None:
        """Remove all messages from the context."""

    async def fork(self, messages: int | None = None) -> str:
        """Create a session from the first ``messages``, or from all; return its id."""

    async def aside(self, question: str) -> SideReply:
        """Answer a side question from the conversation, without becoming part of it."""

    async def close(self) -> None:
        """Release the session. Idempotent."""


class SessionInfo(msgspec.Struct, frozen=True):
    """A recorded session."""

    id: str
    title: str
    cwd: str
    updated: str
    messages: int
    parent: str = ""


class SkillInfo(msgspec.Struct, frozen=True):
    """A skill and the place that it was found in."""

    name: str
    description: str
    place: str


class Untrusted(msgspec.Struct, frozen=True):
    """A project's extension or skill that does not run until the user trusts it.

    ``shadows`` is the directory of the global extension that it would replace. ``covers`` are lines about what would be
    trusted, with the ``fingerprint``.
    """

    kind: Literal["extension", "skill"]
    name: str
    directory: str
    shadows: str = ""
    covers: tuple[str, ...] = ()
    fingerprint: str = ""


class Home(Protocol):
    """The rest of a front end's needs: the other sessions, credentials, skills and trust."""

    async def open(self, session: str | None = None) -> Conversation:
        """Open a recorded session, or a new one without ``session``."""

    async def sessions(self) -> Sequence[SessionInfo]:
        """Return the recorded sessions, newest first."""

    async def export(self, session: str, path: str) -> None:
        """Write a session to a new, portable file."""

    async def import_(self, path: str) -> str:
        """Read an exported session; return its id."""

    async def skills(self) -> Sequence[SkillInfo]:
        """Return the skills that the model can load."""

    async def untrusted(self) -> Sequence[Untrusted]:
        """Return the project's extensions and skills that are not trusted."""

    async def trust(self, one: Untrusted) -> None:
        """Trust it, with its present content."""

    async def providers(self) -> Sequence[str]:
        """Return the names of the providers that use a key."""

    async def login(self, provider: str, key: str) -> str:
        """Store a key unless the service refuses it; return a message for the user."""

    async def logout(self, provider: str) -> str:
        """Remove a stored key; return a message for the user."""


class FirstConversation(Protocol):
    """The home of a front end, and the conversation that it shows first. Both are opened after the first frame."""

    async def home(self) -> Home:
        """Open the home."""

    async def session(self, home: Home) -> Conversation:
        """Open the conversation, once the user has decided about trust in the project."""


class OpenedConversation:
    """A `FirstConversation` that is open already."""

    def __init__(self, home: Home, conversation: Conversation) -> None:
        self._home = home
        self._conversation = conversation

    async def home(self) -> Home:
        return self._home

    async def session(self, home: Home) -> Conversation:
        return self._conversation
