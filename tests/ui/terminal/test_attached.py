"""Several terminals at one session of the daemon stay in step."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from extensions.stage import Extension
from restarting import Restarting
from ui.terminal.stage import PATIENCE_S, Stage
from zot.client.client import Client
from zot.config.config import Config
from zot.ui.conversation import Conversation, Home, OpenedConversation
from zot.ui.local import LocalHome
from zot.ui.remote import ClientHome
from zot.ui.terminal.app import ZotApp
from zot.ui.terminal.panel_views import PanelView
from zot.wire.daemon_types import Costs, State

#: Has one panel, which shows the last key.
KEYED = """
hello("commands", "panels")
say("register_command", name="open", description="opens it")
say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        panel = {"id": "p1", "title": "Todo", "lines": ["nothing pressed"]}
        say("command_response", id=frame["id"], action="open_panel", open_panel=panel)
    elif frame["type"] == "panel_key":
        say("panel_render", panel_id="p1", title="Todo", lines=["pressed " + frame["key"]])
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
"""
#: Takes a while for its command, until a file is there, and says when it is done.
TARRYING = """
hello("commands")
say("register_command", name="tarry", description="takes a while")
say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        while not os.path.exists("data/" + frame["args"]):
            time.sleep(0.02)
        say("notify", level="info", message="done with " + frame["args"])
        say("command_response", id=frame["id"], action="noop")
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
"""
HELD = """!script call bash {"command": "while ! [ -e %s ]; do sleep 0.02; done"} ;; --- ;; say "released" """


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["write=ask"]\n')
    return tmp_path


@asynccontextmanager
async def attached(
    client: Client, home: Path, session: str | None = None, state: str = "ready", own: Home | None = None
) -> AsyncIterator[Stage]:
    """A terminal at a session, or at a new one, when it shows that state. The daemon has the home ``own``, if any."""
    there = ClientHome(client, cwd=str(home), agent="careful", own=None if own is None else lambda cwd, agent: own)
    talk = await there.open(session)
    app = ZotApp(OpenedConversation(there, talk))
    async with app.run_test(size=(80, 30)) as pilot:
        person = Stage(app, pilot, there)  # type: ignore[arg-type]  # It only keeps it.
        await person.sees(state)
        yield person
    await app.close()


@asynccontextmanager
async def two(home: Path) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two terminals at one session, each with a connection of its own."""
    async with asyncio.timeout(2 * PATIENCE_S), AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(Restarting(home))
        clients = [await stack.enter_async_context(daemon.client()) for _ in range(2)]
        one = await stack.enter_async_context(attached(clients[0], home))
        session = (await one.app.live.conversation.state()).session
        yield one, await stack.enter_async_context(attached(clients[1], home, session))


async def test_one_terminal_s_prompts_are_shown_in_the_other_which_can_answer_and_abort(home: Path) -> None:
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


async def test_both_terminals_show_that_they_wait_at_every_question(home: Path) -> None:
    calls = [f'call write {{"path": "{name}.txt", "content": "{name}"}}' for name in "abc"]
    async with two(home) as (one, other):
        await one.says("!script " + " ;; --- ;; ".join([*calls, 'say "written"']))
        for name in "abc":
            await other.sees(f"write: {name}.txt")
            await other.sees("waiting for you")
            await one.sees(f"write: {name}.txt")
            await one.decides("write wants to run; may it?", "y")
            await other.misses(f"write: {name}.txt")
        await other.sees("   written")
        await other.idle()


async def test_a_terminal_that_joins_later_shows_how_answers_ended(home: Path) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), Restarting(home) as daemon, daemon.client() as client:
        async with attached(client, home) as one:
            session = (await one.app.live.conversation.state()).session
            await one.says('!script say "half of" ;; stall')
            await one.sees("   half of")
            await one.pilot.press("escape")
            await one.idle()
            await one.says("!cut")
            await one.decides("Ask again?", "escape")
            await one.idle()
        async with attached(client, home, session) as late:
            await late.sees("   half an\n\n │ lab: the connection was cut (try again)\n")
            assert "   half of\n\n │ aborted\n" in late.screen
            await late.says(f"/export {home / 'page.html'}")
            await late.sees("exported the conversation to")
    assert (home / "page.html").read_text().count('class="ended"') == 2


async def test_a_terminal_that_joins_later_shows_thoughts_folded(home: Path) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), Restarting(home) as daemon, daemon.client() as client:
        async with attached(client, home) as one:
            await one.says('!script think "Look at the sky." ;; say "It is blue."')
            await one.sees("   It is blue.")
            await one.idle()
            session = (await one.app.live.conversation.state()).session
        async with attached(client, home, session) as later:
            await later.sees("   It is blue.")
            assert "▸ thought, 4 words" in later.screen


async def test_the_number_of_waiting_prompts_is_shown_in_every_terminal(home: Path) -> None:
    async with two(home) as (one, other):
        for name in ("go1", "go2", "go3"):
            await one.app.live.conversation.prompt(HELD % name)
        await other.sees("running bash")
        (home / "go1").touch()
        await other.sees("1 queued")
        (home / "go2").touch()
        await other.misses("1 queued")
        (home / "go3").touch()
        await other.idle()


async def test_a_prompt_whose_model_call_failed_is_sent_again(home: Path) -> None:
    async with two(home) as (one, other):
        await one.says("!script status 400")
        await one.decides("The model call failed. Ask again?", "enter")
        await other.until(lambda: other.screen.count("❯ !script status 400") == 2)
        for person in (one, other):
            await person.decides("The model call failed. Ask again?", "escape")
            await person.misses("Ask again?")


async def test_a_terminal_that_joins_in_mid_answer_shows_all_of_it(home: Path) -> None:
    async with two(home) as (one, other):
        said = 'call bash {"command": "echo noted"} ;; --- ;; say "how it began" ;; say " and " ;; stall'
        await one.says("!echo long before")
        await one.idle()
        await one.says(f"!script {said}")
        await one.sees("how it began and")
        session = (await one.app.live.conversation.state()).session
        async with attached(one.app.terminal.home._client, home, session, "answering") as late:  # type: ignore[attr-defined]
            await late.sees("how it began and")
            for person in (one, other, late):
                shown = [line for line in person.screen.split("\n") if line.strip()]
                assert shown[:-3] == [line for line in one.screen.split("\n") if line.strip()][:-3]
                assert person.screen.count("how it began") == 2  # As it was asked for, and as it was said.
                assert person.screen.count("❯ !echo long before") == 1
            await late.pilot.press("escape")
            await late.sees("aborted")
            await late.idle()


async def test_every_terminal_follows_a_clear(home: Path) -> None:
    async with two(home) as (one, other):
        await one.says("!echo soon forgotten")
        for person in (one, other):
            await person.sees("   soon forgotten")
            await person.idle()
        await one.says("/clear")
        for person in (one, other):
            await person.sees("the conversation was cleared")
            assert "soon forgotten" not in person.screen
        await other.says("!echo said afterwards")
        for person in (one, other):
            await person.sees("   said afterwards")
            assert person.screen.index("was cleared") < person.screen.index("said afterwards")
            await person.idle()


async def test_panels_are_shown_in_a_terminal_that_joins_later_and_end_with_the_daemon(home: Path) -> None:
    keyed = Extension(home, "keyed", KEYED)
    with (home / "config.toml").open("a") as config:
        config.write(f'ext = ["{keyed.directory}"]\n')
    async with asyncio.timeout(3 * PATIENCE_S), Restarting(home) as daemon, daemon.client() as client:
        async with attached(client, home) as one:
            await one.until(lambda: bool(one.app.terminal.extension_commands), "commands of the extension")
            await one.says("/open ")
            await one.sees("nothing pressed")
            await one.app.live.conversation.send_key("p1", "down")
            await one.sees("pressed down")
            session = (await one.app.live.conversation.state()).session
            async with daemon.client() as second, attached(second, home, session) as late:
                await late.sees("pressed down")
                daemon.cut()
                async with daemon.client() as third:
                    await (await third.attach(session)).send_key("p1", "up", "")
                for person in (one, late):  # The daemon has it still, and says so.
                    await person.sees("pressed up")
                await late.pilot.press("shift+tab", "escape")
                for person in (one, late):
                    await person.misses("pressed up")
                await one.says("/open ")
                await late.sees("nothing pressed")
                await daemon.stop()
                await one.sees("no connection to the daemon, trying again")
                await daemon.start()
                for person in (one, late):
                    await person.misses("nothing pressed")
                    await person.sees("ready")
                    assert "no panel" not in person.screen


async def test_only_the_terminal_that_gave_a_command_waits_for_its_extension(home: Path) -> None:
    tarrying = Extension(home, "tarrying", TARRYING)
    with (home / "config.toml").open("a") as config:
        config.write(f'ext = ["{tarrying.directory}"]\n')
    async with two(home) as (one, other):
        for state, name in (("ready", "first"), ("running bash", "second")):
            await one.says(f"/tarry {name}")
            await one.sees("waiting for tarrying")
            (tarrying.directory / "data" / name).touch()
            await other.sees(f"done with {name}")  # It was told of the wait before.
            assert "waiting for tarrying" not in other.screen
            for person in (one, other):
                await person.sees(state)
                await person.misses("waiting for tarrying")
            if name == "first":
                await one.says(HELD % "go")
                await other.sees("running bash")
        (home / "go").touch()
        for person in (one, other):
            await person.idle()


async def test_a_steering_message_can_be_withdrawn_from_the_daemon(home: Path) -> None:
    async with two(home) as (one, other):
        await one.says(HELD % "go")
        await one.sees("running bash")
        await one.says("!echo never said", "ctrl+s")
        await one.sees("steering: !echo never said")
        await one.pilot.press("up")
        await one.until(lambda: one.app.editor.text == "!echo never said")
        assert "steering:" not in one.screen
        (home / "go").touch()
        for person in (one, other):
            await person.sees("   released")
            await person.idle()
            assert "❯ !echo never said" not in person.screen
            assert "error" not in person.screen


async def test_a_named_image_steers_a_prompt_of_the_daemon_too(home: Path) -> None:
    (home / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async with two(home) as (one, other):
        await one.says(HELD % "go")
        await one.sees("running bash")
        await one.says("!echo seen @dot.png", "ctrl+s")
        await one.sees("steering: !echo seen @dot.png")
        (home / "go").touch()
        for person in (one, other):
            await person.sees("   seen @dot.png")
            await person.sees("[image/png, ")
            await person.idle()


async def test_parents_of_forks_are_known_and_a_session_is_found_by_its_id_prefix(home: Path) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), Restarting(home) as daemon, daemon.client() as client:
        async with attached(client, home) as person:
            await person.says("!echo copied")
            await person.idle()
            first = (await person.app.live.conversation.state()).session
            await person.says("/session fork")
            await person.sees("the original is unchanged")
            await person.sees("ready")
            copy = (await person.app.live.conversation.state()).session
            await person.says("/session tree")
            await person.sees(f"- {first}  !echo copied (2 messages)")
            await person.sees(f"  * {copy}")
            await person.says(f"/sessions {first[:-1]}")
            await person.misses(f"  * {copy}")
            await person.sees("ready")
            assert (await person.app.live.conversation.state()).session == first
            await person.says(f"/sessions {first[:4]}")  # The year.
            await person.sees("is the beginning of several sessions")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("/login", "the daemon has its own keys; on its machine, run: zot login"),
        ("/login anthropic", "the daemon has its own keys; on its machine, run: zot login"),
        ("/logout anthropic", "has its own keys; on its machine, run: zot logout"),
        ("/skills", "on its machine, run: zot skills list"),
        ("/session export", "run: zot sessions --config-dir DIR export"),
        ("/session import a.jsonl", "run: zot sessions --config-dir DIR import"),
    ],
)
async def test_a_command_that_is_not_available_remotely_suggests_another(home: Path, command: str, said: str) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), Restarting(home) as daemon, daemon.client() as client:
        async with attached(client, home) as person:
            await person.says(command)
            await person.until(lambda: said in " ".join(person.screen.replace("│", " ").split()), said)
            await person.idle()


async def test_models_of_other_providers_are_offered_and_the_chosen_one_stays(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-test")
    async with asyncio.timeout(2 * PATIENCE_S), AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(Restarting(home))
        client = await stack.enter_async_context(daemon.client())
        one = await stack.enter_async_context(attached(client, home))
        session = (await one.app.live.conversation.state()).session
        other = await stack.enter_async_context(attached(client, home, session))
        await one.says("!script status 400")
        await one.sees("deepseek/deepseek")
        await one.decides("The model call failed. Ask again?", "escape")
        await other.decides("The model call failed. Ask again?", "escape")
        await one.says("/model deepseek-chat")
        await one.sees("the next model call uses deepseek/deepseek-chat")
        await other.until(lambda: "deepseek-chat" in other.screen.split("\n")[-1], "the other status line")
        await daemon.running.daemon.sessions.pool.let_go(session)
        assert (await other.app.live.conversation.state()).model == "deepseek-chat"
        await other.says("/model lab/lab-1")
        await one.until(lambda: "lab-1" in one.screen.split("\n")[-1], "the status line of the first")
        await other.says("!echo as before")
        await one.sees("   as before")
        await other.idle()
        await other.says("/model deepseek-chat")
        await one.until(lambda: "deepseek-chat" in one.screen.split("\n")[-1], "the status line of the first")
    kept = Config(journal=str(home / "journal.db"), cwd=str(home), env={"DEEPSEEK_API_KEY": "sk", "HOME": str(home)})
    own = await LocalHome(kept).open(session)
    assert ((now := await own.state()).provider, now.model) == ("deepseek", "deepseek-chat")
    await own.close()


async def test_a_lock_holds_for_all_terminals_and_after_a_restart_of_the_daemon(home: Path) -> None:
    async with asyncio.timeout(3 * PATIENCE_S), AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(Restarting(home))
        client = await stack.enter_async_context(daemon.client())
        one = await stack.enter_async_context(attached(client, home))
        session = (await one.app.live.conversation.state()).session
        other = await stack.enter_async_context(attached(client, home, session))
        await one.says("/lock")
        await other.sees("locked")
        await other.says("!read /etc/hostname")
        await one.sees("outside")
        await other.idle()
        await daemon.stop()
        await one.sees("trying again")
        await daemon.start()
        await one.misses("trying again")
        await one.says("!read /etc/passwd")
        await other.until(lambda: other.screen.count("outside") == 2)
        await one.idle()
        await other.says("/unlock")
        await one.misses("locked ·")
        await other.says("!bash exec sleep 300")
        await one.sees("running bash")
        await one.says("/lock")
        await one.sees("the lock cannot be changed while a prompt or compact is running")
        await one.pilot.press("escape")
        await other.sees("aborted")


async def test_a_side_question_is_answered_during_a_run_counted_for_all_and_can_be_aborted(home: Path) -> None:
    async with asyncio.timeout(3 * PATIENCE_S), AsyncExitStack() as stack:
        daemon = await stack.enter_async_context(Restarting(home))
        client = await stack.enter_async_context(daemon.client())
        one = await stack.enter_async_context(attached(client, home))
        session = (await one.app.live.conversation.state()).session
        other = await stack.enter_async_context(attached(client, home, session))
        await one.says("!echo said before")
        await other.sees("   said before")
        await one.idle()
        await other.says(HELD % "go")
        await one.sees("running bash")
        await one.says("/btw !echo just so")
        await one.sees("just so")
        assert (await other.app.live.conversation.state()).usage.input == 300
        (home / "go").touch()
        await one.sees("   released")
        await one.idle()
        await other.idle()
        assert "just so" not in other.screen
        await one.says("/btw !echo once more")
        await one.sees("once more")
        await one.says("/btw !stall")
        await one.sees("answering a side question")
        await one.pilot.press("escape")
        await one.sees("the side question was aborted")
        await daemon.stop()
        await one.sees("trying again")
        await daemon.start()
        await one.misses("trying again")
        now = await one.app.live.conversation.state()
        assert (now.message_count, now.usage.input) == (6, 500)
        spent = await client.ask("cost/query", {}, Costs)
        assert (spent.request_count, spent.total_tokens) == (5, 600)


async def test_extensions_are_reloaded_for_all_terminals(home: Path) -> None:
    keyed = Extension(home, "keyed", KEYED)
    with (home / "config.toml").open("a") as config:
        config.write(f'ext = ["{keyed.directory}"]\n')
    program = keyed.directory / "run.py"
    async with two(home) as (one, other):
        await other.until(lambda: [c.name for c in other.app.terminal.extension_commands] == ["open"], "its command")
        await one.says("/open ")
        await other.sees("nothing pressed")
        await one.until(lambda: isinstance(one.app.focused, PanelView), "the panel has the keys")
        one.app.screen.set_focus(one.app.editor)
        program.write_text(program.read_text().replace('name="open"', 'name="shut"'))
        await one.says("/reload-ext")
        await one.sees("running: keyed")
        await other.until(
            lambda: [c.name for c in other.app.terminal.extension_commands] == ["shut"], "its new command"
        )
        await other.misses("nothing pressed")
        program.write_text("#!/bin/sh\nexit 3\n")
        await other.says("/reload-ext")
        await other.sees("the extensions were not reloaded: keyed: ")
        assert [command.name for command in await one.app.live.conversation.commands()] == ["shut"]


async def test_a_session_made_from_another_has_its_agent(home: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "ZOT_HOME": str(home)}

    def own(cwd: str, agent: str) -> Home:
        return LocalHome(Config(provider="lab", cwd=cwd, env=env, agent=agent))

    async def entered(talk: Conversation) -> str:
        state = await client.ask("session/state", {"sessionId": (await talk.state()).session}, State)
        return state.agent_alias

    async with asyncio.timeout(2 * PATIENCE_S), Restarting(home) as daemon, daemon.client() as client:
        careful = await client.session(agent="careful", cwd=str(home))
        there = ClientHome(client, cwd=str(home), own=own)
        await there.open(careful.id)
        new = await there.open()
        assert (await new.state()).session != careful.id
        assert await entered(new) == "careful"
        await there.export(careful.id, str(home / "a.jsonl"))
        assert await entered(await there.open(await there.import_(str(home / "a.jsonl")))) == "careful"
        await there.open((await client.session(agent="default", cwd=str(home))).id)
        assert await entered(await there.open()) == "default"
        assert await entered(await there.open(await there.import_(str(home / "a.jsonl")))) == "default"


async def test_at_a_daemon_with_the_same_home_sessions_are_exported_imported_and_skills_listed(home: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "ZOT_HOME": str(home)}
    own = LocalHome(Config(provider="lab", cwd=str(home), env=env))
    async with asyncio.timeout(2 * PATIENCE_S), Restarting(home) as daemon, daemon.client() as client:
        async with attached(client, home, own=own) as person:
            await person.says("!echo carried over")
            await person.idle()
            first = (await person.app.live.conversation.state()).session
            await person.says(f"/session export {home}/a.jsonl")
            await person.sees("exported the session to")
            await person.says(f"/session import {home}/a.jsonl")
            await person.sees("switched to session")
            assert "   carried over" in person.screen
            assert (await person.app.live.conversation.state()).session != first
            await person.says("/skills")
            await person.sees("write-zot-extension")
            await person.says("/logout anthropic")
            await person.sees("nothing is stored for anthropic")
