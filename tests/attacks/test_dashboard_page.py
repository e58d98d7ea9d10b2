"""Attacks on the dashboard's page: hostile texts of models, tools, files, sessions and panels; foreign pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from browser import Browser, Page, browsing
from extensions.stage import Extension
from optional import needs
from serve.web.face import Face, until
from serve.web.pages import IDLE, begin, dashboard, link, paired, submit

from .privilege import thorough

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: Each would run a script, load something, or draw markup if it became more than text.
HOSTILE = (
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1><script>window.hacked=1</script></svg>",
    "[a](javascript:window.hacked=1) [b](data:text/html,<script>window.hacked=1</script>) ![i](http://127.0.0.1:9/x.png)",
    "</pre><iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<style>*{display:none}</style><base href=http://127.0.0.1:9/><form action=http://127.0.0.1:9/>",
    "<meta http-equiv=refresh content=0><link rel=stylesheet href=http://127.0.0.1:9/>",
    "```constructor\nwindow.hacked=1\n```\n",
    "${window.hacked=1} {{constructor.constructor('window.hacked=1')()}} \u202e\u0007",
)
EVERYTHING = "\n\n".join(HOSTILE)
#: Elements that only markup could have made.
TAGS = ":is(script, iframe, style, base, form:not(.fields), meta, link, object, embed)"
MADE = f"document.querySelectorAll('#main {TAGS}, #sessions img, .answer img, .panel img').length"


#: A page of another origin, in the browser that is paired.
FOREIGN = """<!doctype html><iframe id=f src=ORIGIN/web/></iframe><script>
  window.outcomes = [];
  const note = (name) => (value) => window.outcomes.push([name, String(value)]);
  const socket = new WebSocket("ORIGIN/web/ws".replace("http", "ws"), ["zot.v1"]);
  socket.onopen = () => note("socket")("open");
  socket.onerror = () => note("socket")("refused");
  const ask = (name, options) => fetch(`ORIGIN/web/${name}`, { credentials: "include", ...options })
    .then((one) => note(name)(one.status), () => note(name)("refused"));
  ask("device");
  ask("unpair", { method: "POST", headers: { "x-zot-page": "1" } });
</script>"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with browsing(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    home = tmp_path_factory.mktemp("page")
    panel = {"id": "p", "title": HOSTILE[0], "lines": HOSTILE[:4], "footer": HOSTILE[1]}
    script = f"""
hello("commands", "panels")
say("register_command", name="show", description={HOSTILE[0]!r})
say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        say("command_response", id=frame["id"], action="open_panel", open_panel={panel!r})
"""
    async with dashboard(home / "home", ext=(str(Extension(home, "hostile", script).directory),)) as face:
        yield face


async def is_unharmed(page: Page, face: Face) -> None:
    """Fail if a text became markup or script, or if the page sent a request to another machine."""
    assert await page.run("window.hacked") is None
    assert await page.run(MADE) == 0
    assert {one.split("/")[2] for one in page.requested if not one.startswith("blob:")} == {f"127.0.0.1:{face.port}"}
    assert [one for one in page.problems if "Security" in one or "Trusted" in one] == []


@thorough
@needs("chromium")
async def test_text_of_models_tools_and_files_stays_text(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    name = "<img src=x onerror=window.hacked=1>.md"
    (tmp_path / name).write_text(EVERYTHING)
    said, read = json.dumps(EVERYTHING), json.dumps({"path": name})
    script = f"!script think {said} ;; say {said} ;; call read {read} ;; --- ;; say over"
    await begin(page, script, tmp_path)
    await page.until(IDLE)
    await page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for text in (".answer", ".thought pre", ".tool .output"):
        assert "<img src=x onerror=window.hacked=1>" in await page.text(text)
    assert "<img" in await page.text(".tool .about")
    assert await page.run("[...document.querySelectorAll('#main a')].every((one) => one.protocol.startsWith('http'))")
    await is_unharmed(page, face)


@thorough
@needs("chromium")
async def test_arguments_names_and_panels_stay_text(browser: Browser, face: Face, tmp_path: Path) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!bash echo '" + HOSTILE[0] + "'", tmp_path)
    await page.until("document.querySelector('.approval button')")
    assert HOSTILE[0] in await page.text(".approval .command")
    async with face.connected() as client:
        await client.call("initialize", {"protocolVersion": 1})
        await client.call("session/rename", {"sessionId": session, "title": HOSTILE[1]})
    await page.run("location.hash = '#/inbox'")
    await page.until("document.querySelector('#inbox .request a')?.textContent.startsWith('<svg onload')")
    await is_unharmed(page, face)
    async with face.connected() as client:
        await client.call("initialize", {"protocolVersion": 1})
        params = {"sessionId": session, "prompt": HOSTILE[0], "promptId": HOSTILE[1]}
        await client.socket.send(json.dumps({"jsonrpc": "2.0", "id": 9, "method": "session/prompt", "params": params}))
        await page.run(f"location.hash = '#/s/{session}'")
        await page.until("document.querySelector('.queue .text')")
    assert await page.text(".queue .text") == HOSTILE[0]
    await page.run("document.querySelector('.queue button').click()")
    await page.until("document.querySelector('dialog .bad')")
    await is_unharmed(page, face)
    await page.run("document.querySelector('dialog .bad').click()")
    await page.until("!document.querySelector('.queue li')")
    await page.run("location.hash = '#/inbox'")
    await page.until("document.querySelector('#inbox .request')")
    await page.run("document.querySelector('#inbox .request').focus()")
    await page.press("r")
    await page.run(f"location.hash = '#/s/{session}'")
    await page.until(IDLE)
    await submit(page, "/show ")
    await page.until("document.querySelector('.panel pre')")
    assert await page.text(".panel pre") == "\n".join(HOSTILE[:4])
    await page.run("document.getElementById('prompt').focus()")
    await page.type("/sho")
    await page.until("document.querySelector('.offers li')?.textContent.includes('<img')")
    await is_unharmed(page, face)


@thorough
@needs("chromium")
async def test_a_session_id_from_the_address_is_only_an_id(browser: Browser, face: Face) -> None:
    page = await paired(browser, face)
    for one in (*HOSTILE[:2], "../../x", "%", "__proto__"):
        await page.run(f"location.hash = '#/s/' + encodeURIComponent({json.dumps(one)})")
        await page.until("document.querySelector('.notice.error')")
        await is_unharmed(page, face)


@thorough
@needs("chromium")
async def test_a_foreign_page_cannot_frame_reach_or_script_the_dashboard(browser: Browser, face: Face) -> None:
    context = await browser.profile()
    page = await browser.page(link(face), context=context)
    await page.until("document.getElementById('link').dataset.state === 'live'")
    origin = f"http://127.0.0.1:{face.port}"
    body = FOREIGN.replace("ORIGIN", origin).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        foreign = await browser.page(f"http://localhost:{port}/", context=context)
        await foreign.until("window.outcomes?.length === 3")
        assert sorted(await foreign.run("window.outcomes")) == [
            ["device", "refused"], ["socket", "refused"], ["unpair", "refused"],
        ]  # fmt: skip
        await foreign.until("document.getElementById('f').contentDocument === null")
        await until(lambda: any("frame-ancestors" in one or "X-Frame-Options" in one for one in foreign.problems))
    assert await page.run("fetch('device').then((one) => one.status)") == 200, "it is still paired"
