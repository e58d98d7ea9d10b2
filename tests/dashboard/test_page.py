"""The dashboard in a real browser, with a daemon in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from browser import Browser
from optional import needs
from serve.web.face import Face, until
from serve.web.pages import IDLE, begin, link, messages, paired, text_of
from zot.config.tokens import path_in, read_scoped, revoke, scoped_path_beside

pytestmark = pytest.mark.asyncio(loop_scope="module")


@needs("chromium")
async def test_a_link_pairs_once_and_the_code_leaves_the_address(browser: Browser, face: Face) -> None:
    address = link(face, name="laptop")
    page = await browser.page(address, context=await browser.profile())
    await page.until("document.getElementById('link').dataset.state === 'live'")
    assert await page.run("location.href") == f"http://127.0.0.1:{face.port}/web/#/"
    kept = "Object.keys(localStorage).filter((key) => key !== 'zot')"
    assert await page.run(f"document.cookie + {kept} + JSON.stringify(sessionStorage)") == "{}"
    assert page.problems == []
    assert {one.split("/")[2] for one in page.requested} == {f"127.0.0.1:{face.port}"}
    second = await browser.page(address, context=await browser.profile())
    await second.until("document.body.dataset.view === 'unpaired'")
    assert "used already" in await second.text("main")


@needs("chromium")
async def test_a_revoked_device_is_disconnected_and_notified(browser: Browser, face: Face) -> None:
    page = await paired(browser, face, name="lost")
    revoke(path_in(face.daemon.place.data_dir), "web.lost")
    await page.until("document.getElementById('link').dataset.state === 'unpaired'")
    assert "zot web pair" in await page.text("main")
    page = await paired(browser, face, name="leaver")
    await page.run("document.getElementById('settings').click()")
    await page.until("document.querySelector('.unpair')")
    await page.run("document.querySelector('.unpair').click()")
    await page.until("document.querySelector('dialog p + .buttons .bad')")
    await page.run("document.querySelector('dialog p + .buttons .bad').click()")
    await page.until("document.getElementById('link').dataset.state === 'unpaired'")
    path = scoped_path_beside(path_in(face.daemon.place.data_dir))
    assert not {"web.lost", "web.leaver"} & {one.name for one in read_scoped(path)}


@needs("chromium")
async def test_a_conversation_is_streamed_as_markdown_and_markup_stays_text(browser: Browser, face: Face) -> None:
    page = await paired(browser, face)
    hostile = (
        "# Title <img src=x onerror=alert(1)>\n\n* **bold** `code` [ok](https://example.org) [no](javascript:alert(1))"
    )
    read = 'say "Looking." ;; call read {"path": "missing"}'
    script = f'!script think "hm" ;; {read} ;; --- ;; say {json.dumps(hostile)}'
    await begin(page, script)
    await page.until(IDLE)
    assert await page.run("[...document.querySelectorAll('.answer, .tool')].map(one => one.className)") == [
        "answer", "tool", "answer",
    ]  # fmt: skip
    assert await page.text(".tool .state") == "failed"
    assert await page.text(".answer") == "Looking."
    answer = "document.querySelectorAll('.answer')[1]"
    assert await page.run(f"{answer}.querySelector('h3').textContent") == "Title <img src=x onerror=alert(1)>"
    assert await page.run(f"[...{answer}.querySelectorAll('strong, code')].map(one => one.textContent)") == [
        "bold",
        "code",
    ]
    assert await page.run(f"[...{answer}.querySelectorAll('a')].map(one => one.href)") == ["https://example.org/"]
    assert "[no](javascript:alert(1))" in await page.run(f"{answer}.textContent")
    assert await page.run("document.querySelectorAll('#main img, #main script').length") == 0
    assert await page.text(".thought pre") == "hm"
    await page.until("document.querySelector('.conversation h2').textContent.startsWith('!script think')")
    assert page.problems == []


@needs("chromium")
async def test_an_approval_is_decided_from_the_inbox_by_key_and_elsewhere(browser: Browser, face: Face) -> None:
    page, other = await paired(browser, face), await paired(browser, face)
    await other.run("location.hash = '#/inbox'")
    await begin(page, "!bash echo from-the-inbox; echo again")
    await other.until("document.querySelector('#inbox .approval')")
    assert await other.text("#inbox pre") == "echo from-the-inbox; echo again"
    assert await other.run("document.title") == "(1) zot"
    await page.until("document.querySelector('.approval button')")
    await other.run("document.getElementById('main').focus()")
    await other.press("a")  # Without the focus on the approval, a key decides nothing.
    assert await page.text(".approval .outcome") == ""
    await other.press("j")
    await other.press("a")
    await page.until(IDLE)
    await page.until("document.querySelector('.tool').dataset.state === 'done'")
    assert "from-the-inbox\nagain" in await page.text(".tool .output")
    assert (await page.text(".approval .outcome")).startswith("Allowed once by ws:web.")
    await other.until("!document.querySelector('#inbox .approval') && document.title === 'zot'")

    await page.run("document.getElementById('prompt').focus()")
    await page.type("!bash echo rejected")
    await page.press("Enter")
    await other.until("document.querySelector('#inbox .approval')")
    await page.run("document.querySelector('.approval:not([data-settled])').focus()")
    await page.press("r")
    await other.until("!document.querySelector('#inbox .approval')")  # Answered in the other tab.
    await page.until(IDLE)


@needs("chromium")
async def test_an_approval_shows_every_argument_and_every_character(browser: Browser, face: Face) -> None:
    page = await paired(browser, face)
    args = {"command": "rm\u200b \u202e-rf\u00a0\u3164~\nls", "timeout": 5}
    await begin(page, f"!script call bash {json.dumps(args)}")
    await page.until("document.querySelector('.approval button')")
    shown = "rm\\u{200b} \\u{202e}-rf\\u{a0}\\u{3164}~\nls\n" + json.dumps({"timeout": 5}, indent=2)
    pieces = "[...document.querySelectorAll('.approval pre')].map(one => one.textContent).join('\\n')"
    assert await page.run(pieces) == shown
    await page.run("document.querySelector('.approval').focus()")
    await page.press("r")
    await page.until(IDLE)


@needs("chromium")
async def test_a_socket_that_is_killed_in_mid_turn_costs_no_text(browser: Browser, face: Face) -> None:
    page = await paired(browser, face, name="shaky")
    session = await begin(page, "!slow 60 0.02")
    shown = "document.querySelector('.answer')?.textContent ?? ''"
    for number in range(5):
        await page.until(f"({shown}).length > {number * 5}")
        mine = [one for one in face.daemon.connections if one.grant.name == "web.shaky"]
        for connection in mine:
            connection.wire.cut("a test")
        await page.until("document.getElementById('link').dataset.state !== 'live'")
        await until(lambda: any(one.grant.name == "web.shaky" for one in face.daemon.connections))
    await page.until("document.getElementById('link').dataset.state === 'live'")
    await page.until(IDLE)
    journal = [one for one in await messages(face, session) if one["role"] == "assistant"]
    answers = await page.run("[...document.querySelectorAll('.answer')].map(one => one.textContent)")
    assert [one.strip() for one in answers] == [text_of(one).strip() for one in journal]
    assert await page.run("document.querySelectorAll('.user').length") == 1


@needs("chromium")
async def test_a_prompt_is_queued_steered_and_stopped_by_keys(browser: Browser, face: Face) -> None:
    page = await paired(browser, face)
    await begin(page, "!stall")
    await page.until("document.activeElement.id === 'prompt' && !document.querySelector('.stop').hidden")
    await page.type("!echo queued")
    await page.press("Enter")
    await page.until("document.querySelector('.queue .text')?.textContent === '!echo queued'")
    await page.press("Escape")
    await page.until("[...document.querySelectorAll('.answer')].some(one => one.textContent === 'queued')")
    assert await page.run("document.querySelectorAll('.user').length") == 2


@needs("chromium")
async def test_a_page_without_the_roles_shows_no_composer_and_no_buttons(browser: Browser, face: Face) -> None:
    page = await paired(browser, face)
    session = await begin(page, "!bash echo watched")
    watcher = await paired(browser, face, "view")
    await watcher.run("location.hash = '#/inbox'")
    await watcher.until("document.querySelector('#inbox .approval')")
    assert await watcher.run("document.querySelectorAll('#inbox button').length") == 0
    await watcher.run(f"location.hash = '#/s/{session}'")
    await watcher.until("document.querySelector('.composer')?.hidden")
    await page.run("document.querySelector('.approval').focus()")
    await page.press("r")
    await page.until(IDLE)


@needs("chromium")
@pytest.mark.parametrize("width", [360, 768, 1600])
async def test_nothing_is_wider_than_the_window(browser: Browser, face: Face, width: int, tmp_path: Path) -> None:
    page = await paired(browser, face)
    await begin(page, "!echo " + "long" * 100)
    await page.until(IDLE)
    for view in ("#/", "#/new", "#/inbox"):
        await page.size(width, 740)
        await page.run(f"location.hash = '{view}'")
        await asyncio.sleep(0)
        assert await page.run("document.documentElement.scrollWidth") <= width
    names = await page.run(
        "[...document.querySelectorAll('a, button, input, select, textarea')].filter(one => "
        "!(one.textContent.trim() || one.labels?.length || one.getAttribute('aria-label'))).length"
    )
    assert names == 0


async def test_a_device_is_a_token_with_a_name_of_its_own(face: Face) -> None:
    path = scoped_path_beside(path_in(face.daemon.place.data_dir))
    assert all(one.name.startswith("web.") and one.expires for one in read_scoped(path))
