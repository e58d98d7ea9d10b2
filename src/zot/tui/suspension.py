"""Being stopped, and going on: the screen is drawn again, whoever stopped us."""

from __future__ import annotations

import asyncio
import signal
from types import FrameType
from typing import Any

from textual.app import App


def redraw_when_continued(app: App[Any]) -> None:
    """Have ``app`` draw everything anew when it goes on.

    Ctrl+Z gives the terminal back meanwhile; in a stop that nobody announced it was kept.
    """
    app.app_resume_signal.subscribe(app, lambda _: app.refresh(layout=True))
    driver = app._driver
    resume = getattr(driver, "_sigcont_application", None)
    if resume is None:
        return  # There is no terminal.
    loop = asyncio.get_running_loop()

    def go_on(number: int, frame: FrameType | None) -> None:
        if getattr(driver, "_must_signal_resume", True):
            resume(number, frame)
        else:  # It would begin a second time, and take its own settings of the terminal for those before.
            loop.call_soon_threadsafe(lambda: app.refresh(layout=True))

    signal.signal(signal.SIGCONT, go_on)
