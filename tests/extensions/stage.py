"""Real extensions in a real session: small scripts, the frames they receive, and their effects for subscribers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from harness import MARK, PATIENCE_S
from zot.config.config import Config
from zot.encoding import encode
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.session.history import Batch, Subscriber
from zot.session.session import Session

#: What every script begins with: it can speak, writes down what it hears, and hears nothing after it was told to end.
_PRELUDE = """\
import json, os, sys, time
heard = open("data/heard", "a")
def say(kind, **fields):
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\\n")
    sys.stdout.flush()
def frames():
    for line in sys.stdin:
        heard.write(line); heard.flush()
        frame = json.loads(line)
        yield frame
        if frame["type"] == "shutdown":
            return
def hello(*capabilities):
    say("hello", name=NAME, version="1", capabilities=list(capabilities))
def answer(frame, **decision):
    say("event_intercept_response", id=frame["id"], **decision)
"""
#: Hears everything, decides about nothing, and ends when it is told to.
WATCHER = """
hello("events")
say("subscribe", events=["session_start", "turn_start", "turn_end", "tool_call", "assistant_message"])
say("ready")
for frame in frames():
    if frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""


class Extension:
    """A directory with an extension in it, and the frames it has received."""

    def __init__(self, place: Path, name: str, script: str, **manifest: Any) -> None:
        self.directory = place / name
        (self.directory / "data").mkdir(parents=True)
        program = self.directory / "run.py"
        program.write_text(f"#!/usr/bin/env python3\nNAME = {name!r}\n{_PRELUDE}{script}")
        program.chmod(0o755)
        described = {"name": name, "exec": "./run.py", **manifest}
        (self.directory / "extension.json").write_text(json.dumps(described))

    def heard(self) -> list[dict[str, Any]]:
        """Every frame that the extension has received, without the greeting."""
        path = self.directory / "data" / "heard"
        lines = path.read_text().split("\n") if path.exists() else []
        frames = [json.loads(line) for line in lines if line]
        return [frame for frame in frames if frame["type"] != "hello_ack"]

    def heard_types(self) -> list[str]:
        """The types of the frames it received; for events, the type of the event."""
        return [
            frame.get("event", frame["type"]) + (" ?" if "intercept" in frame["type"] else "") for frame in self.heard()
        ]


class Stage(Subscriber):
    """A session with extensions. Use as an async context; ``kept`` in a journal, or not."""

    def __init__(self, home: Path, *extensions: Extension, kept: bool = False, **settings: Any) -> None:
        self.home = home
        self.events: list[dict[str, Any]] = []
        env = {"ZOT_HOME": str(home), "PATH": os.environ["PATH"], MARK: os.environ.get(MARK, "")}
        defaults = {"provider": "lab", "cwd": str(home), "env": env, "ext": tuple(str(e.directory) for e in extensions)}
        self._config = Config(**{**defaults, **({"session": "s"} if kept else {}), **settings})
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._deadline = asyncio.timeout(PATIENCE_S)
        await self._deadline.__aenter__()
        self._resources = SharedResources()
        self.session: Session = await open_session(OpenRequest(config=self._config), self._resources)
        self.session.history.subscribe(self)
        return self

    async def __aexit__(self, *problem: Any) -> None:
        await self.session.close()
        await self._resources.close()
        await self._deadline.__aexit__(*problem)

    async def prompt(self, script: str) -> list[dict[str, Any]]:
        """Play ``script`` and return its events, without notices of slow extensions, which depend on the machine."""
        start = len(self.events)
        self.session.prompt(f"!script {script}")
        await self.session.worker.finish()
        return [event for event in self.events[start:] if not is_wait(event)]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something that comes with an event is so."""
        while not true():
            self._news.clear()
            await self._news.wait()

    async def until_offered(self, tool: str) -> None:
        """Wait until the model may call ``tool``."""
        while tool not in [offered.spec.name for offered in self.session.agent.extensions.tools()]:
            await asyncio.sleep(0.005)

    async def until_logged(self, name: str, text: str) -> None:
        """Wait until an extension's log contains ``text``."""
        while text not in self.log(name):
            await asyncio.sleep(0.005)

    def notices(self) -> list[tuple[str, str]]:
        """Notices of extensions, or about them, with their senders; without those of slow starts."""
        notices = [event for event in self.events if event["type"] == "ext_notify" and not is_wait(event)]
        return [(event["extension"], event["message"]) for event in notices]

    def log(self, name: str) -> str:
        """Return the content of an extension's log."""
        return (self.home / "logs" / f"ext-{name}.log").read_text()

    # A subscriber of the session.

    full = False

    def deliver(self, batch: Batch) -> None:
        self.events += [json.loads(encode(event)) for event in batch.events]
        self._news.set()


def results(events: Sequence[dict[str, Any]]) -> list[tuple[str, bool]]:
    """The results of the calls among ``events``: their text, and whether they failed."""
    found = [event for event in events if event["type"] == "tool_result"]
    return [("".join(block["text"] for block in event["content"]), event["is_error"]) for event in found]


def typed(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the types of events, without notices of slow extensions, which depend on the machine."""
    return [event["type"] for event in events if not is_wait(event)]


def is_wait(event: dict[str, Any]) -> bool:
    """Tell if an event reports a slow extension, which depends on the machine."""
    return event["type"] == "ext_waiting" or str(event.get("message")).startswith("waiting for extension")
