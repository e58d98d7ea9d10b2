"""A page that was cut off, frozen or overtaken shows the journal's events: no gap, no repetition."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from browser import Browser
from harness import at_home
from optional import needs
from serve.web.face import Face, until
from serve.web.pages import IDLE, LIVE, begin, dashboard, open_session, paired, recorded, shown, submit
from zot.serve.daemon.client_connection import ClientConnection
from zot.serve.web import listen, open_daemon

pytestmark = pytest.mark.asyncio(loop_scope="module")
KILLS = 100


@needs("chromium")
async def test_a_socket_killed_a_hundred_times_in_mid_turn_costs_nothing(browser: Browser, face: Face) -> None:
    page = await paired(browser, face, name="shaky")
    session = await begin(page, "!slow 2400 0.01")

    def mine() -> list[ClientConnection]:
        return [one for one in face.daemon.connections if one.grant.name == "web.shaky"]

    for number in range(KILLS):
        for connection in mine():
            connection.wire.cut("a test")
        await until(lambda: bool(mine()))
        if number % 10 == 0:  # Some cuts come while it catches up, others when it is live.
            await page.until(LIVE)
    assert not await page.run(IDLE), "the turn was still running"
    await page.until(IDLE)
    await page.until(LIVE)
    assert await shown(page) == await recorded(face, session)
    other = await paired(browser, face)  # A page that saw nothing of it shows the same.
    await open_session(other, session)
    await other.until("document.querySelectorAll('.answer').length === 1")
    assert await shown(other) == await shown(page)


@needs("chromium")
async def test_a_tab_frozen_over_a_restart_of_the_daemon_catches_up(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with dashboard(home) as face:
        page = await paired(browser, face)
        session = await begin(page, "!echo before")
        await page.until(IDLE)
        url = face.url
        await page.send("Page.setWebLifecycleState", state="frozen")
        async with face.connected() as client:
            await client.begin(session)
            await client.prompt(session, "!read nothing.txt")
    with at_home(home / "user"):
        async with open_daemon(home, provider="lab") as daemon:
            listening = await listen(daemon, url)
            face = Face(daemon, listening.url, home)
            try:
                async with face.connected() as client:
                    await client.begin(session)
                    await client.prompt(session, "!say 50 after it all")
                expected = await recorded(face, session)
                await page.send("Page.setWebLifecycleState", state="active")
                await page.until(f"document.querySelectorAll('.user, .answer').length === {len(expected)}")
                await page.until(f"{LIVE} && {IDLE}")
                assert await shown(page) == expected
                await submit(page, "!echo still here")
                await page.until(f"document.querySelectorAll('.user, .answer').length === {len(expected) + 2}")
            finally:
                listening.stop()
                await daemon.close()
                await listening.close()


@needs("chromium")
async def test_an_approval_answered_in_two_tabs_has_one_effect_and_the_other_is_informed(
    browser: Browser, face: Face, tmp_path: Path
) -> None:
    first, second = await paired(browser, face, name="first"), await paired(browser, face, name="second")
    session = await begin(first, f"!bash echo once >> {tmp_path}/effects")
    await open_session(second, session)
    for page in (first, second):
        await page.until("document.querySelector('.approval button')")
        await page.run("document.querySelector('.approval').focus()")
    await asyncio.gather(first.press("a"), second.press("a"))
    for page in (first, second):
        await page.until("document.querySelector('.approval').dataset.settled !== undefined")
        await page.until(IDLE)
    assert (tmp_path / "effects").read_text() == "once\n"
    outcomes = [await page.text(".approval .outcome") for page in (first, second)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0].startswith(("Allowed once by ws:web.first@", "Allowed once by ws:web.second@"))


@needs("chromium")
async def test_a_lost_network_is_shown_and_survived(browser: Browser, face: Face) -> None:
    page = await paired(browser, face, name="roaming")
    session = await begin(page, "!slow 300 0.01")
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await page.send("Network.emulateNetworkConditions", **offline)
    for connection in [one for one in face.daemon.connections if one.grant.name == "web.roaming"]:
        connection.wire.cut("a test")
    await page.until("document.getElementById('link').dataset.state === 'lost'")
    await page.run("document.getElementById('prompt').value = '!echo queued while away'")
    await page.run("document.querySelector('.send').click()")
    await page.until("document.querySelector('.notice.error')")
    assert await page.run("document.getElementById('prompt').value") == "!echo queued while away"
    await page.send("Network.emulateNetworkConditions", **{**offline, "offline": False})
    await page.run("window.dispatchEvent(new Event('online'))")
    await page.until(LIVE)
    await page.until(IDLE)
    assert await shown(page) == await recorded(face, session)


@needs("chromium")
async def test_a_network_that_swallows_requests_does_not_stop_the_reconnecting(browser: Browser, face: Face) -> None:
    page = await paired(browser, face, name="swallowed")
    session = await begin(page, "!echo before")
    await page.until(IDLE)
    silent = "new Promise((_, fail) => options.signal?.addEventListener('abort', () => fail(options.signal.reason)))"
    await page.run(f"void (window.fetch = (address, options) => {silent})")
    for connection in [one for one in face.daemon.connections if one.grant.name == "web.swallowed"]:
        connection.wire.cut("a test")
    await page.until("document.getElementById('link').dataset.state === 'lost'")
    await page.until(LIVE)
    await submit(page, "!echo after")
    await page.until("document.querySelectorAll('.answer').length === 2")
    assert await shown(page) == await recorded(face, session)


@needs("chromium")
async def test_a_queued_prompt_survives_a_lost_connection_once_and_in_full(browser: Browser, face: Face) -> None:
    page = await paired(browser, face, name="queueing")
    await begin(page, "!stall")
    await page.until("!document.querySelector('.stop').hidden")
    prompt = f"!echo {'word ' * 60}end"  # Longer than the line that the daemon tells of it.
    await submit(page, prompt)
    await page.until("document.querySelectorAll('.queue li').length === 1")
    await until(lambda: any(one.queue.prompts for one in face.daemon.sessions.pool.sessions))
    for connection in [one for one in face.daemon.connections if one.grant.name == "web.queueing"]:
        connection.wire.cut("a test")
    await page.until(f"!({LIVE})")
    await page.until(LIVE)
    await page.until("document.querySelector('.queue .text')?.textContent.endsWith('…')")
    assert await page.run("document.querySelectorAll('.queue li').length") == 1
    await page.run("document.querySelector('.queue button').click()")
    await page.until("!document.querySelector('.queue li')")
    assert await page.run("document.getElementById('prompt').value") == prompt
    await page.run("document.querySelector('.stop').click()")
    await page.until(IDLE)
    assert await page.run("document.querySelectorAll('.user').length") == 1
    assert page.problems == []
