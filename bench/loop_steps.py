"""Run `zot` and write the CPU time of the longest event-loop steps since the first key, in seconds, as JSON, to the
file that the first argument names.

The terminal cannot react within a step. Run by `terminal.py`, in a terminal.
"""

from __future__ import annotations

import asyncio.base_events as loops
import json
import sys
from time import thread_time

from textual.events import Key

from zot.cli import main
from zot.ui.terminal.app import ZotApp

_KEPT = 20
steps: list[float] = []
once = loops.BaseEventLoop._run_once
on_event = ZotApp.on_event
pressed: list[Key] = []


def timed(loop: loops.BaseEventLoop) -> None:
    began = thread_time()
    once(loop)
    if pressed:
        steps.append(thread_time() - began)


async def hear(app: ZotApp, event: object) -> None:
    if isinstance(event, Key):
        pressed.append(event)
    await on_event(app, event)


path = sys.argv.pop(1)
loops.BaseEventLoop._run_once = timed
ZotApp.on_event = hear
try:
    main()
finally:
    with open(path, "w") as file:
        json.dump(sorted(steps, reverse=True)[:_KEPT], file)
