"""A real Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

#: How long anything may take before a test fails. Never how long it does take.
PATIENCE_S = 90.0
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-extensions", "--disable-sync", "--mute-audio", "--remote-debugging-port=0",
    "--remote-debugging-address=127.0.0.1",
)  # fmt: skip


class BrowserError(Exception):
    """The browser refused a command, or a script threw."""


class Browser:
    """One connection to the browser; each page is a session of it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._count = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.pages: dict[str, Page] = {}

    async def listen(self) -> None:
        """Receive answers and events until the browser exits."""
        async for frame in self._socket:
            said = json.loads(frame)
            if "id" in said:
                if not (answer := self._waiting.pop(said["id"])).done():  # The caller may have given up.
                    answer.set_result(said)
            elif (page := self.pages.get(said.get("sessionId", ""))) is not None:
                page.hear(said["method"], said["params"])

    async def send(self, method: str, params: Mapping[str, Any] | None = None, session: str = "") -> dict[str, Any]:
        """Send a command and return its result. Raise BrowserError."""
        self._count += 1
        number = self._count
        told = {"id": number, "method": method, "params": params or {}, **({"sessionId": session} if session else {})}
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps(told))
        async with asyncio.timeout(PATIENCE_S):
            answer = await self._waiting[number]
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    async def page(self, url: str, *, context: str = "", width: int = 1200, height: int = 800) -> Page:
        """Open a page, in a profile of its own with ``context``."""
        made = await self.send(
            "Target.createTarget", {"url": "about:blank", **({"browserContextId": context} if context else {})}
        )
        target = made["targetId"]
        attached = await self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        page = Page(self, attached["sessionId"])
        self.pages[attached["sessionId"]] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.send(f"{domain}.enable")
        await page.send("Emulation.setFocusEmulationEnabled", enabled=True)
        await page.size(width, height)
        await page.go(url)
        return page

    async def profile(self) -> str:
        """Return a new profile, without the cookies of others."""
        made: str = (await self.send("Target.createBrowserContext"))["browserContextId"]
        return made


class Page:
    """A page, the errors it logged, and the addresses it requested."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.problems: list[str] = []
        self.requested: list[str] = []

    def hear(self, method: str, params: Mapping[str, Any]) -> None:
        """Take an event of the browser."""
        match method:
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.exceptionThrown":
                self.problems.append(json.dumps(params["exceptionDetails"]))
            case "Network.requestWillBeSent":
                self.requested.append(params["request"]["url"])
            case "Network.webSocketCreated":
                self.requested.append(params["url"])
            case _:
                pass

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to this page."""
        return await self._browser.send(method, params, self._session)

    async def go(self, url: str) -> None:
        """Open an address."""
        told = await self.send("Page.navigate", url=url)
        if told.get("errorText"):
            raise BrowserError(told["errorText"])

    async def run(self, script: str) -> Any:
        """Return the value of an expression, awaited. Raise BrowserError if it throws."""
        told = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise BrowserError(json.dumps(told["exceptionDetails"]))
        return told["result"].get("value")

    async def until(self, script: str, *, patience_s: float = PATIENCE_S) -> None:
        """Wait until an expression is truthy."""
        value = False
        try:
            async with asyncio.timeout(patience_s):
                while not value:
                    with suppress(BrowserError):  # The page may be navigating.
                        value = await self.run(f"!!({script})")
                    await asyncio.sleep(0.01)
        except TimeoutError:
            shown = await self.run("document.body.innerText")
            raise BrowserError(f"never: {script}\n{shown}\n{self.problems}") from None

    async def text(self, selector: str) -> str:
        """Return the text of the first element that matches."""
        found: str = await self.run(f"document.querySelector({json.dumps(selector)}).textContent")
        return found

    async def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        """Press a key as a person does; ``text`` is the text it types."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9}.get(key, ord(key.upper()[0]))
        told = {"key": key, "modifiers": modifiers, "windowsVirtualKeyCode": code}
        typed = text or (key if len(key) == 1 else "\r" if key == "Enter" else "")
        await self.send("Input.dispatchKeyEvent", type="keyDown", **told, **({"text": typed} if typed else {}))
        await self.send("Input.dispatchKeyEvent", type="keyUp", **told)

    async def type(self, text: str) -> None:
        """Insert text where the focus is."""
        await self.send("Input.insertText", text=text)

    async def size(self, width: int, height: int) -> None:
        """Change the size of the window."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def picture(self, path: Path, *, dark: bool = False) -> None:
        """Save a screenshot of the page."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        shot = await self.send("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Browser]:
    """Start a Chromium with a profile of its own, and end it."""
    env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        "chromium", *_FLAGS, f"--user-data-dir={profile}", "about:blank",
        env={**env, "HOME": str(profile)}, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = profile / "DevToolsActivePort"
        async with asyncio.timeout(PATIENCE_S):
            while not (port.exists() and port.read_text().count("\n")):
                await asyncio.sleep(0.01)
        number, path = port.read_text().split("\n")[:2]
        async with connect(
            f"ws://127.0.0.1:{number}{path}", max_size=None, proxy=None, compression=None, ping_interval=None
        ) as socket:
            browser = Browser(socket)
            listening = asyncio.ensure_future(browser.listen())
            try:
                yield browser
            finally:
                listening.cancel()
                await asyncio.wait([listening])
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
