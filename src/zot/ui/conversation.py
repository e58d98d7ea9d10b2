"""Conversation and Home: what a front end needs of a session, local or remote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from zot.errors import UserError
from zot.events import ApprovalRequest
from zot.messages import ZERO, Counters, ImageBlock, PastMessage
from zot.panels import CommandAnswer, CommandInfo

if TYPE_CHECKING:  # A face shows its first frame before there is a session.
    from zot.session.history import Subscriber

Decision: TypeAlias = Literal["allow_once", "allow_always", "reject"]


class Snapshot(msgspec.Struct, frozen=True):
    """A session at one moment. ``session`` is "" if it is not kept; the window is 0 if nobody knows it.

    ``pending`` is what it waits for a person to decide; ``queued`` prompts, of anybody, wait for the one that runs.
    """

    session: str
    provider: str
    model: str
    cwd: str
    busy: bool = False
    messages: int = 0
    usage: Counters = ZERO
    context_tokens: int = 0
    context_window: int = 0
    locked: bool = False
    pending: ApprovalRequest | None = None
    queued: int = 0


class ModelInfo(msgspec.Struct, frozen=True):
    """A model that can be asked for: of this provider, or of another that is set up."""

    provider: str
    id: str
    name: str = ""
    context_window: int = 0


class Remembered(msgspec.Struct, frozen=True):
    """A call that is allowed for the rest of the session: a ``tool``, and the command or path."""

    tool: str
    subject: str


class Aside(msgspec.Struct, frozen=True):
    """An answer that is no part of the conversation, and what it used."""

    text: str
    usage: Counters


class Conversation(Protocol):
    """One session. What cannot be done raises UserError; what happens is heard by those who `follow`."""

    def follow(self, subscriber: Subscriber) -> Callable[[], None]:
        """Let ``subscriber`` hear every event: from where the `past` ends that was just asked for, else from now on.

        Call what is returned to stop.
        """

    @property
    def is_reachable(self) -> bool:
        """False while there is no connection to it; another one is tried."""

    async def state(self) -> Snapshot:
        """Return how it stands."""

    async def messages(self) -> Sequence[PastMessage]:
        """Return what was said."""

    async def past(self) -> Sequence[PastMessage]:
        """Return what was said before the run that goes on, if one does, else everything: `follow` tells the rest."""

    async def images(self, place: str) -> Sequence[ImageBlock]:
        """Return the images of what a call returned, by its id, or of what somebody said, by its time.

        None of those that cannot be had.
        """

    async def prompt(
        self, text: str, images: Sequence[ImageBlock] = (), *, unsaid: Callable[[], None] = lambda: None
    ) -> None:
        """Run a prompt, after those that came before. ``unsaid`` is called if that is found out to be impossible."""

    async def steer(self, text: str, images: Sequence[ImageBlock] = (), *, name: str = "") -> None:
        """Say something to the running prompt, before its next model call. By its ``name`` it can be taken back."""

    async def take_back(self, name: str) -> None:
        """Let what was to steer never be said. Raise UserError if it has been."""

    async def retry(self) -> None:
        """Go on with the newest prompt, which failed, without saying it again."""

    async def abort(self) -> None:
        """End what runs. Does nothing when idle."""

    async def approve(self, request: str, decision: Decision) -> None:
        """Answer an approval request."""

    async def remembered(self) -> Sequence[Remembered]:
        """Return what was allowed for the rest of the session."""

    async def forget(self, one: Remembered) -> None:
        """Ask about it again."""

    async def commands(self) -> Sequence[CommandInfo]:
        """Return the commands of extensions, when those have had the time to say which they have."""

    async def run_command(self, name: str, args: str) -> CommandAnswer:
        """Run a command of an extension, and return what it wants done."""

    async def press(self, panel_id: str, key: str, text: str = "") -> None:
        """Let an open panel have a key."""

    async def close_panel(self, panel_id: str) -> None:
        """Close a panel."""

    async def reload_extensions(self) -> Sequence[str]:
        """Replace the extensions by what is there now, all or none; return the names of those that run."""

    async def models(self) -> Sequence[ModelInfo]:
        """Return the models that can be used, those of this provider first."""

    async def use_model(self, model: ModelInfo) -> None:
        """Use another model from the next model call on."""

    async def lock(self, *, locked: bool) -> None:
        """Keep the tools inside the directory, or no longer."""

    async def compact(self) -> None:
        """Summarise the conversation."""

    async def clear(self) -> None:
        """Forget the conversation."""

    async def fork(self, messages: int | None = None) -> str:
        """Make another session of the first ``messages``, or of all; return its id."""

    async def aside(self, question: str) -> Aside:
        """Answer a question about the conversation that does not become part of it."""

    async def close(self) -> None:
        """Let go of it. Any number of times."""


class SessionInfo(msgspec.Struct, frozen=True):
    """A session that is kept."""

    id: str
    title: str
    cwd: str
    updated: str
    messages: int
    parent: str = ""


def meant(name: str, known: Sequence[str]) -> str | None:
    """Return the session that ``name`` means: itself, or the only one that begins so; None if there is none.

    Raise UserError if several begin so.
    """
    fits = [name] if name in known else [one for one in known if one.startswith(name)]
    if len(fits) > 1:
        raise UserError(f"{name!r} is the beginning of several sessions: {', '.join(fits[:5])}")
    return fits[0] if fits else None


class SkillInfo(msgspec.Struct, frozen=True):
    """A skill, and where it is from."""

    name: str
    description: str
    place: str


class Untrusted(msgspec.Struct, frozen=True):
    """Something of a project that does not run until somebody trusts it. ``shadows`` says whose place it would take."""

    kind: Literal["extension", "skill"]
    name: str
    directory: str
    shadows: str = ""


class Home(Protocol):
    """What a face needs besides its conversation: the other sessions, keys, skills, and what is trusted."""

    async def open(self, session: str | None = None) -> Conversation:
        """Return a session that is kept; a new one without a name."""

    async def sessions(self) -> Sequence[SessionInfo]:
        """Return the sessions that are kept, the newest first."""

    async def export(self, session: str, path: str) -> None:
        """Write a session to a new file that can be read elsewhere."""

    async def import_(self, path: str) -> str:
        """Read a session that was exported; return its id."""

    async def skills(self) -> Sequence[SkillInfo]:
        """Return the skills that the model can load."""

    async def untrusted(self) -> Sequence[Untrusted]:
        """Return what the project has and nobody trusts."""

    async def trust(self, one: Untrusted) -> None:
        """Trust it, as it is now."""

    async def providers(self) -> Sequence[str]:
        """Return the providers that have keys."""

    async def login(self, provider: str, key: str) -> str:
        """Store a key, if the service takes it; return what to say about it."""

    async def logout(self, provider: str) -> str:
        """Forget a key; return what to say about it."""
