"""Pages of the dashboard in a real browser: pairing, starting sessions, and comparing a page with the journal."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from browser import Browser, Page
from zot.config.pairing import open_pairing
from zot.config.tokens import path_in

from .face import Face, faced

ALL = ("view", "prompt", "approve", "self_approve")
CONFIG = '[agents.default]\nprovider = "lab"\npolicy = ["bash=ask", "*=allow"]\n'
LIVE = "document.getElementById('link').dataset.state === 'live'"
IDLE = "document.querySelector('.conversation [role=status]').textContent.startsWith('idle')"


@asynccontextmanager
async def dashboard(home: Path, config: str = CONFIG, **settings: Any) -> AsyncIterator[Face]:
    """Run a daemon with a dashboard and these agents."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(config)
    async with faced(home, **settings) as face:
        yield face


def link(face: Face, *roles: str, name: str = "") -> str:
    """Return a link that pairs a browser."""
    path = path_in(face.daemon.place.data_dir)
    code = open_pairing(path, name=name, roles=roles or ALL, now=time.time())
    return f"http://127.0.0.1:{face.port}/web/#pair={code}"


async def paired(browser: Browser, face: Face, *roles: str, name: str = "", width: int = 1200) -> Page:
    """Return a page of a new profile that was paired."""
    page = await browser.page(link(face, *roles, name=name), context=await browser.profile(), width=width)
    await page.until(LIVE)
    return page


async def begin(page: Page, prompt: str, cwd: Path | None = None) -> str:
    """Start a session from the page with a first prompt; return its id."""
    await page.run("location.hash = '#/new'")
    await page.until("document.activeElement.id === 'first' && document.querySelector('#agent option')")
    await page.type(prompt)
    if cwd is not None:
        await page.run(f"document.getElementById('cwd').value = {json.dumps(str(cwd))}")
    await page.run("document.querySelector('form').requestSubmit()")
    await page.until("document.querySelector('.user')")
    return str(await page.run("decodeURIComponent(location.hash.slice(4))"))


async def open_session(page: Page, session: str) -> None:
    """Show a session and wait until its page is loaded."""
    await page.run(f"location.hash = '#/s/' + encodeURIComponent({json.dumps(session)})")
    await page.until(f"document.querySelector('.conversation .head h2').textContent && ({IDLE} || 1)")


async def submit(page: Page, text: str) -> None:
    """Type a prompt and send it."""
    await page.run("document.getElementById('prompt').focus()")
    await page.type(text)
    await page.press("Enter")


async def messages(face: Face, session: str) -> list[dict[str, Any]]:
    """Return the conversation that is on record."""
    async with face.connected() as client:
        await client.call("initialize", {"protocolVersion": 1})
        told = await client.call("session/messages", {"sessionId": session})
    found: list[dict[str, Any]] = told["result"]["messages"]
    return found


async def shown(page: Page) -> list[str]:
    """Return the prompts and answers on the page."""
    found: list[str] = await page.run(
        "[...document.querySelectorAll('.user > p:first-child, .answer')].map(one => one.textContent.trim())"
    )
    return found


async def recorded(face: Face, session: str) -> list[str]:
    """Return the prompts and answers on record."""
    return [text for one in await messages(face, session) if one["role"] != "tool" and (text := text_of(one).strip())]


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
