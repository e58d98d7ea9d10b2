"""What a slash command can do with a terminal, whether it has a screen or only lines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

import msgspec

from zot.slash import CommandInfo
from zot.ui.conversation import Conversation, Home
from zot.ui.terminal.level import Level

T = TypeVar("T")


class Option(msgspec.Struct, Generic[T], frozen=True):
    """Something that can be chosen: by its ``key``, if it has one, or from a list."""

    value: T
    label: str
    key: str = ""


class Terminal(Protocol):
    """Where a person sits. Questions are None if they are not answered."""

    @property
    def conversation(self) -> Conversation: ...

    @property
    def home(self) -> Home: ...

    @property
    def extension_commands(self) -> Sequence[CommandInfo]:
        """What extensions offer, as far as it is known."""

    def note(self, text: str, level: Level = "info") -> None:
        """Say something that is no part of the conversation."""

    def present(self, text: str, source: str) -> None:
        """Show Markdown that is no part of the conversation."""

    def insert(self, text: str) -> None:
        """Put text where the person writes."""

    def now(self) -> float:
        """Return the time by the terminal's clock."""

    def enter_panel(self, panel_id: str, since: float) -> None:
        """Let a panel have the keys that was asked for here at a time, unless something was typed since."""

    def busy(self, text: str) -> AbstractContextManager[None]:
        """Say what is waited for, as long as the block takes."""

    async def choose(
        self, title: str, options: Sequence[Option[T]], *, body: str = "", sudden: bool = False
    ) -> T | None:
        """Let the person choose. ``body`` says what it is about; ``sudden``: nobody has asked for the question."""

    async def ask(self, title: str, *, secret: bool = False) -> str | None:
        """Let the person write something."""

    async def submit(self, text: str) -> None:
        """Say something to the model."""

    async def retry(self) -> None:
        """Let the model answer what was said last, which failed."""

    async def compact(self) -> None:
        """Summarise the conversation."""

    async def switch(self, session: str | None) -> None:
        """Go to another session; to a new one without a name."""

    async def jump(self) -> None:
        """Let the person go to something that was said before."""

    def page(self) -> str:
        """Return how keys are used here, as Markdown."""

    def leave(self) -> None:
        """End."""
