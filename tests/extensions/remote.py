"""An extension at the other end of a `Link`: no process, no network, only lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from zot.extensions.sources import RemoteCarrier


class Remote:
    """Sends the frames of the test, and answers each type of frame by ``replies``."""

    def __init__(self, **replies: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
        self.heard: list[dict[str, Any]] = []
        self.hung_up_on = False
        self.link = RemoteCarrier(self)
        self._replies = {"shutdown": lambda frame: {"type": "shutdown_ack"}, **replies}
        self._news = asyncio.Event()

    async def says(self, *frames: dict[str, Any]) -> None:
        """Let it send frames, in one piece."""
        await self.link.bring(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))

    async def hears(self, kind: str) -> dict[str, Any]:
        """Wait until it has received a frame of a type, and return the first."""
        while True:
            for frame in self.heard:
                if frame["type"] == kind:
                    return frame
            self._news.clear()
            await self._news.wait()

    def send(self, data: bytes) -> None:
        """Receive lines from zot, and answer them."""
        for line in data.split(b"\n")[:-1]:
            frame = json.loads(line)
            self.heard.append(frame)
            answer = self._replies.get(frame["type"])
            if answer is not None and (reply := answer(frame)) is not None:
                asyncio.get_running_loop().create_task(self.says(reply))
        self._news.set()

    def hang_up(self) -> None:
        """Note the end of the connection."""
        self.hung_up_on = True
