"""Several terminals at one session of the daemon stay in step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from restarting import Restarting
from tui.stage import PATIENCE_S, Stage
from zot.client import Client
from zot.client_home import ClientHome
from zot.conversation import Conversation, Home
from zot.tui.app import ZotApp

HELD = """!script call bash {"command": "while ! [ -e %s ]; do sleep 0.02; done"} ;; --- ;; say "released" """


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["write=ask"]\n')
    return tmp_path


@asynccontextmanager
async def attached(client: Client, home: Path, session: str | None = None) -> AsyncIterator[Stage]:
    """A terminal at a session, or at a new one."""
    there = ClientHome(client, cwd=str(home), agent="careful")
    talk = await there.open(session)

    async def begin() -> Home:
        return there

    async def first(_: Home) -> Conversation:
        return talk

    app = ZotApp(begin, first)
    async with app.run_test(size=(80, 30)) as pilot:
        person = Stage(app, pilot, there)  # type: ignore[arg-type]  # It only keeps it.
        await person.sees("ready")
        yield person
    await app.close()


@asynccontextmanager
async def two(home: Path) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two terminals at one session, each with a connection of its own."""
    async with asyncio.timeout(2 * PATIENCE_S), AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(Restarting(home))
        clients = [await stack.enter_async_context(daemon.client()) for _ in range(2)]
        one = await stack.enter_async_context(attached(clients[0], home))
        session = (await one.app.conversation.state()).session
        yield one, await stack.enter_async_context(attached(clients[1], home, session))


async def test_what_one_says_the_other_shows_and_can_answer_and_abort(home: Path) -> None:
    async with two(home) as (one, other):
        await one.says('!script call write {"path": "a.txt", "content": "a"} ;; --- ;; say "it is written"')
        await other.sees("❯ !script call write")
        await one.until(lambda: "write wants to run; may it?" in one.screen)
        await other.decides("write wants to run; may it?", "y")
        await one.sees("   it is written")
        await one.misses("write wants to run; may it?")
        assert (home / "a.txt").read_text() == "a"
        await other.idle()
        await one.says("!slow 1000 0.02")
        await other.sees("answering")
        await other.pilot.press("escape")
        await one.sees("aborted")
        await one.idle()


async def test_how_many_prompts_wait_at_the_session_is_shown_to_all(home: Path) -> None:
    async with two(home) as (one, other):
        for name in ("go1", "go2", "go3"):
            await one.app.conversation.prompt(HELD % name)
        await other.sees("running bash")
        (home / "go1").touch()
        await other.sees("1 queued")
        (home / "go2").touch()
        await other.misses("1 queued")
        (home / "go3").touch()
        await other.idle()


async def test_a_prompt_whose_model_call_failed_is_said_again(home: Path) -> None:
    async with two(home) as (one, other):
        await one.says("!script status 400")
        await one.decides("The model call failed. Ask again?", "enter")
        await other.until(lambda: other.screen.count("❯ !script status 400") == 2)
        for person in (one, other):
            await person.decides("The model call failed. Ask again?", "escape")
            await person.misses("Ask again?")
