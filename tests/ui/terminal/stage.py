"""The terminal app on a screen in memory, with a lab session."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from textual import _wait
from textual.pilot import Pilot

import zot.ui.terminal.question_views
from zot.config.config import Config, ConfigOverrides
from zot.ui.conversation import Conversation, Home
from zot.ui.local import LocalHome
from zot.ui.terminal.app import ZotApp
from zot.ui.terminal.question_views import QuestionView
from zot.ui.terminal.styles import Look

PATIENCE_S = 60.0

# After each key it is waited until nothing is computed any more, and that is looked at twice, 50 times a second.
_wait.SLEEP_GRANULARITY, _wait.SLEEP_IDLE = 1 / 200, 1 / 1000


class Stage:
    """A running app, the keys that a person presses, and the content of the screen."""

    def __init__(self, app: ZotApp, pilot: Pilot[int], home: LocalHome) -> None:
        self.app = app
        self.pilot = pilot
        self.home = home

    @property
    def screen(self) -> str:
        """The text on the screen."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise AssertionError(f"did not happen: {what}\n{self.screen}") from None

    async def sees(self, text: str) -> None:
        """Wait until a text is on the screen."""
        await self.until(lambda: text in self.screen, f"{text!r} on the screen")

    async def misses(self, text: str) -> None:
        """Wait until a text is no longer on the screen."""
        await self.until(lambda: text not in self.screen, f"{text!r} gone from the screen")

    async def says(self, text: str, *keys: str) -> None:
        """Type something, and send it."""
        self.app.editor.insert(text)
        await self.pilot.press(*(keys or ("enter",)))

    async def decides(self, question: str, key: str) -> None:
        """Answer a question with a key, once it takes any."""
        await self.until(lambda: question in self.screen and isinstance(self.app.focused, QuestionView), question)
        await self.pilot.press(key)

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self.until(lambda: not self.app.live.story.doing and not self.app.live.feed.waits, "that it is idle")
        await self.sees("ready")


class First:
    """The conversation that an app shows first, opened when ``may_open`` is set."""

    def __init__(self, home: LocalHome, session: str | None, may_open: asyncio.Event | None) -> None:
        self._home = home
        self._name = session
        self._may_open = may_open

    async def home(self) -> Home:
        return self._home

    async def session(self, home: Home) -> Conversation:
        if self._may_open is not None:
            await self._may_open.wait()
        return await home.open(self._name)


@asynccontextmanager
async def stage(
    directory: Path,
    *,
    size: tuple[int, int] = (100, 40),
    look: Look | None = None,
    session: str | None = None,
    keep: bool = True,
    clock: Callable[[], float] = time.monotonic,
    may_open: asyncio.Event | None = None,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """Have the app open a session in ``directory``, if allowed, with a home of its own and these settings."""
    home_directory = directory / "home"
    home_directory.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "ZOT_HOME": str(home_directory)}
    env |= {name: value for name, value in os.environ.items() if name.startswith("ZOT_TEST")}
    config = Config(**{"provider": "lab", "cwd": str(directory), "env": env, **settings})
    home = LocalHome(config, ConfigOverrides(frozenset(settings)), keep=keep)
    app = ZotApp(First(home, session, may_open), look=look, clock=clock)
    # Tests of the time in which a question ignores keys pass a clock; other tests do not wait for it.
    hurried: dict[str, Any] = {"IGNORE_KEYS_S": 0.1, "_PAUSE_S": 0.1} if clock is time.monotonic else {}
    try:
        with mock.patch.multiple(zot.ui.terminal.question_views, **hurried) if hurried else nullcontext():
            async with app.run_test(size=size) as pilot:
                yield Stage(app, pilot, home)
    finally:
        await app.close()
        await home.close()
