"""The terminal line by line: the same conversation, questions and commands."""

from __future__ import annotations

import asyncio
import io
import os
import select
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from extensions.stage import Extension
from ui.terminal.stage import stage
from ui.terminal.test_extensions import PLAYER
from zot.config.config import Config, ConfigOverrides
from zot.ui.conversation import Conversation, Home
from zot.ui.local import LocalHome
from zot.ui.terminal.plain import PlainTerminal

PATIENCE_S = 60.0
#: Takes its time, opens a panel and closes it.
SLOW_PANEL = """
hello("commands", "panels")
say("register_command", name="open", description="opens it")
say("ready")
for frame in frames():
    if frame["type"] == "command_invoked":
        while not os.path.exists("data/go"):
            time.sleep(0.02)
        panel = {"id": "list", "title": "Todo", "lines": ["ship"], "footer": "x is done"}
        say("command_response", id=frame["id"], action="open_panel", open_panel=panel)
        say("panel_close", panel_id="list")
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
"""


class Lines:
    """The typed input and the output."""

    def __init__(self, running: asyncio.Task[int], typed: int, incoming: int, written: io.StringIO) -> None:
        self.running = running
        self._typed = typed
        self._incoming = incoming
        self._written = written
        self._read = 0

    def type(self, line: str) -> None:
        os.write(self._typed, f"{line}\n".encode())

    def end(self) -> None:
        """Press Ctrl+D, at a terminal."""
        os.write(self._typed, b"\x04")

    async def read(self) -> None:
        """Wait until the typed input has been read."""
        async with asyncio.timeout(PATIENCE_S):
            while select.select([self._incoming], [], [], 0)[0]:
                await asyncio.sleep(0.01)

    @property
    def unread(self) -> str:
        """The output that was not returned before."""
        return self._written.getvalue()[self._read :]

    async def until(self, text: str) -> str:
        """Return the output up to and including a text, from the first character not returned before."""
        async with asyncio.timeout(PATIENCE_S):
            while (found := self._written.getvalue().find(text, self._read)) < 0:
                await asyncio.sleep(0.01)
        begin, self._read = self._read, found + len(text)
        return self._written.getvalue()[begin : self._read]


class First:
    """The conversation that a terminal shows first."""

    def __init__(self, home: LocalHome) -> None:
        self._home = home

    async def home(self) -> Home:
        return self._home

    async def session(self, home: Home) -> Conversation:
        return await self._home.begin()


@asynccontextmanager
async def lines(directory: Path, *, tty: bool = False, **settings: Any) -> AsyncIterator[Lines]:
    env = {"PATH": os.environ["PATH"], "HOME": str(directory), "ZOT_HOME": str(directory / "home")}
    env |= {name: value for name, value in os.environ.items() if name.startswith("ZOT_TEST")}
    given = {"provider": "lab", "cwd": str(directory), **settings}
    home = LocalHome(Config(**given, env=env), ConfigOverrides(frozenset(given)))

    incoming, typed = reversed(os.openpty()) if tty else os.pipe()
    written = io.StringIO()
    terminal = PlainTerminal(First(home), incoming=incoming, output=written)
    running = asyncio.get_running_loop().create_task(terminal.run())
    try:
        yield Lines(running, typed, incoming, written)
        os.close(typed)
        async with asyncio.timeout(PATIENCE_S):
            assert await running == 0
    finally:
        running.cancel()
        os.close(incoming)
        await home.close()


async def test_a_conversation_with_questions_and_commands(tmp_path: Path) -> None:
    async with lines(tmp_path, policy=("bash=ask",)) as person:
        await person.until("> ")
        person.type("!bash echo first; echo second")
        await person.until("? bash: echo first; echo second\n  allow it? y(es), a(lways), n(o), until ")
        person.type("y")
        assert "  | first\n  | second\n" in await person.until("finished.\n> ")
        person.type("!bash rm everything")
        await person.until("n(o), until ")
        person.type("no")
        assert "  ! not run: the user refused this call\n" in await person.until("> ")
        person.type("/model")
        await person.until("  1  lab/lab-1 200k\n  number, or nothing: ")
        person.type("\u00b2")  # No number of an option, although Python calls it a digit.
        assert "the next model call" not in await person.until("> ")
        person.type("/model")
        await person.until("number, or nothing: ")
        person.type("1")
        await person.until("-- the next model call uses lab/lab-1\n> ")
        person.type("/nonsense")
        await person.until("-- unknown command /nonsense; /help lists the commands\n> ")
        person.type("/jump")
        await person.until("-- there is no screen to scroll\n> ")
        person.type("/login deepseek")
        await person.until("-- typed text is visible here; in a shell, run: zot login\n> ")
        person.type("/session new")
        await person.until("-- session 2")
        person.type("/exit")


async def test_a_failed_model_call_and_an_escape_sequence(tmp_path: Path) -> None:
    script = tmp_path / "fails.lab"
    script.write_text('status 400\n---\nsay "all \\u001b[2J good"\n')
    async with lines(tmp_path, script=str(script)) as person:
        await person.until("> ")
        person.type("hello")
        await person.until("? The model call failed. Ask again?\n  1  lab/lab-1, once more\n  number, or nothing: ")
        person.type("1")
        await person.until("all \\x1b[2J good")


async def test_control_c_aborts_and_text_typed_meanwhile_is_shown_and_not_sent(tmp_path: Path) -> None:
    async with lines(tmp_path) as person:
        await person.until("> ")
        person.type("!slow 1000 0.02")
        await person.until(" ")
        person.type("!echo never")
        person.type("/nonsense")
        await person.read()
        os.kill(os.getpid(), signal.SIGINT)
        shown = await person.until("-- aborted\n> ")
        assert "-- not sent: !echo never\n-- not sent: /nonsense\n" in shown
        person.type("!echo at once")
        assert await person.until("at once\n> ") == "at once\n> "


async def test_every_action_of_extensions_works(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with lines(tmp_path, ext=(str(player.directory),)) as person:
        await person.until("> ")
        person.type("/display")
        await person.until("[player]\n# A note\n\n- shown\n> ")
        person.type("/notes")
        await person.until("[player] error: a notice of level error\n")
        person.type("/open")
        await person.until("== First [red]\n   [b]a\n   b\n")
        person.type("/prompt")
        await person.until("asked by an extension\n> ")


async def test_at_a_terminal_text_typed_before_a_question_does_not_answer_it(tmp_path: Path) -> None:
    script = tmp_path / "asks.lab"
    script.write_text('call bash {"command": "touch it-ran"}\n---\nsay "then not"\n---\nsay "what?"\n')
    async with lines(tmp_path, tty=True, script=str(script), policy=("bash=ask",)) as person:
        await person.until("> ")
        person.type("begin\ny")
        await person.until("allow it? y(es), a(lways), n(o), until ")
        person.type("n")
        await person.until("then not\n> ")
        await person.until("what?\n> ")
        assert not (tmp_path / "it-ran").exists()


async def test_a_question_shows_everything_that_would_run(tmp_path: Path) -> None:
    long = f"echo {'x' * 300}"
    script = tmp_path / "asks.lab"
    script.write_text(
        f"""call bash {{"command": "{long}"}}\n---\ncall bash {{"command": "a\\nb\\u001b", "timeout": 7}}\n---\n"""
        """call write {"path": "a.txt", "content": "one\\ntwo"}\n---\nsay "over"\n"""
    )
    async with lines(tmp_path, script=str(script), policy=("*=ask",)) as person:
        await person.until("> ")
        person.type("begin")
        await person.until(f"\n    {long}\n  allow it?")
        person.type("n")
        await person.until("? bash: a\\nb\\x1b\n    a\n    b\\x1b\n    timeout: 7\n  allow it?")
        person.type("n")
        await person.until("? write: a.txt (7 bytes)\n    +one\n    +two\n  allow it?")
        person.type("n")
        await person.until("over\n> ")


async def test_a_path_at_the_beginning_is_not_a_command(tmp_path: Path) -> None:
    script = tmp_path / "answers.lab"
    script.write_text('say "names of hosts"\n')
    async with lines(tmp_path, script=str(script)) as person:
        await person.until("> ")
        person.type("/etc/hosts what is it")
        await person.until("names of hosts\n> ")


@pytest.mark.parametrize("tty", [False, True])
async def test_control_c_at_a_question_withdraws_it_and_the_next_line_is_a_prompt(tmp_path: Path, *, tty: bool) -> None:
    async with lines(tmp_path, tty=tty, policy=("bash=ask",)) as person:
        await person.until("> ")
        person.type("!bash touch it-ran")
        await person.until("n(o), until ")
        os.kill(os.getpid(), signal.SIGINT)
        await person.until("-- aborted\n> ")
        person.type("!echo y")
        assert await person.until("y\n> ") == "y\n> "
        person.type("!bash touch it-ran")
        await person.until("n(o), until ")
        person.type("y")
        await person.until("finished.\n> ")
        assert (tmp_path / "it-ran").exists()


async def test_an_abort_that_fails_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path) as other:
        await other.sees("ready")
        await other.says("!echo how it began")
        await other.idle()
        session = (await other.app.live.conversation.state()).session
        async with lines(tmp_path, session=session) as person:
            await person.until("> ")
            await other.says("!slow 1000 0.02")
            await person.until("another process is running")
            os.kill(os.getpid(), signal.SIGINT)
            await person.until("abort it there")
            await other.pilot.press("escape")
            await person.until("-- aborted")


async def test_a_named_image_is_sent(tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    async with lines(tmp_path) as person:
        await person.until("> ")
        person.type("!echo see @dot.png")
        await person.until("see @dot.png\n> ")
        person.type(f"/export {tmp_path}/out.html")
        await person.until("-- exported the conversation to ")
        assert "image/png" in (tmp_path / "out.html").read_text()


async def test_an_answer_that_is_cut_off_says_so(tmp_path: Path) -> None:
    async with lines(tmp_path) as person:
        await person.until("> ")
        person.type("!length")
        await person.until("-- cut off at the model's length limit\n")


async def test_a_panel_is_shown_with_its_footer_and_its_end_and_a_slow_extension_is_named(tmp_path: Path) -> None:
    slow = Extension(tmp_path, "slow", SLOW_PANEL)
    async with lines(tmp_path, ext=(str(slow.directory),)) as person:
        await person.until("> ")
        person.type("/open")
        await person.until("-- waiting for slow\n")
        (slow.directory / "data" / "go").touch()
        await person.until("== Todo\n   ship\n   x is done\n")
        await person.until("== the panel list is closed\n")


@pytest.mark.parametrize(
    ("asking", "question"),
    [
        ("!script status 400", "number, or nothing: "),
        ("/model", "number, or nothing: "),
        ("!bash echo q", "n(o), until "),
    ],
)
async def test_control_d_at_a_question_answers_nothing_and_leaves(tmp_path: Path, asking: str, question: str) -> None:
    async with lines(tmp_path, tty=True, policy=("bash=ask",)) as person:
        await person.until("> ")
        person.type(asking)
        await person.until(question)
        person.end()
        await person.until("\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await person.running == 0
        assert person.unread == ""


async def test_an_undecided_call_is_asked_about_again_after_leaving(tmp_path: Path) -> None:
    async with lines(tmp_path, tty=True, session="one", policy=("bash=ask",)) as person:
        await person.until("> ")
        person.type("!bash touch it-ran")
        await person.until("n(o), until ")
        person.end()
    async with lines(tmp_path, tty=True, session="one", policy=("bash=ask",)) as person:
        await person.until("? bash: touch it-ran\n  allow it? y(es), a(lways), n(o), until ")
        assert not (tmp_path / "it-ran").exists()
        person.type("y")
        await person.until("finished.\n")
        assert (tmp_path / "it-ran").exists()


async def test_leaving_at_the_trust_question_asks_nothing_more(tmp_path: Path) -> None:
    for name in ("one", "two"):
        Extension(tmp_path / ".zot" / "extensions", name, PLAYER)
    async with lines(tmp_path, tty=True) as person:
        await person.until("? Trust the extension one of this project?")
        await person.until("number, or nothing: ")
        person.end()
        async with asyncio.timeout(PATIENCE_S):
            assert await person.running == 0
        assert person.unread == "\n"


async def test_text_typed_before_an_abandoned_question_is_shown(tmp_path: Path) -> None:
    async with lines(tmp_path, tty=True, policy=("bash=ask",)) as person:
        await person.until("> ")
        person.type("!bash echo q\n!echo later")
        await person.until("n(o), until ")
        person.end()
        await person.until("\n-- not sent: !echo later\n")


@pytest.mark.parametrize("asking", ["!script status 400", "/model"])
async def test_control_c_withdraws_every_question(tmp_path: Path, asking: str) -> None:
    async with lines(tmp_path, tty=True) as person:
        await person.until("> ")
        person.type(asking)
        await person.until("number, or nothing: ")
        os.kill(os.getpid(), signal.SIGINT)
        assert await person.until("> ") == "\n> "
        person.type("!echo 1")
        assert await person.until("1\n> ") == "1\n> "


async def test_a_retried_prompt_asks_about_its_calls_and_its_failures_again(tmp_path: Path) -> None:
    script = tmp_path / "fails.lab"
    call = 'call bash {"command": "touch it-ran"}'
    script.write_text(f'status 400\n---\n{call}\n---\nstatus 400\n---\nsay "at last"\n')
    async with lines(tmp_path, script=str(script), policy=("bash=ask",)) as person:
        await person.until("> ")
        person.type("hello")
        await person.until("number, or nothing: ")
        person.type("1")
        await person.until("? bash: touch it-ran\n  allow it? y(es), a(lways), n(o), until ")
        person.type("y")
        await person.until("number, or nothing: ")
        assert (tmp_path / "it-ran").exists()
        person.type("1")
        await person.until("at last\n> ")


async def test_the_reason_extensions_cannot_be_reloaded_is_printed_once(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with lines(tmp_path, ext=(str(player.directory),)) as person:
        await person.until("> ")
        (player.directory / "run.py").write_text("#!/bin/sh\nexit 3\n")
        person.type("/reload-ext")
        assert await person.until("> ") == (
            "-- reloading the extensions\n"
            "-- the extensions were not reloaded: player: exited with 3 before it said hello\n> "
        )


async def test_events_elsewhere_withdraw_no_other_question(tmp_path: Path) -> None:
    async with stage(tmp_path) as other:
        await other.sees("ready")
        await other.says("!echo how it began")
        await other.idle()
        session = (await other.app.live.conversation.state()).session
        async with lines(tmp_path, session=session) as person:
            await person.until("> ")
            person.type("/model")
            await person.until("number, or nothing: ")
            await other.says("!echo meanwhile")
            await person.until("meanwhile\n")
            await other.idle()
            person.type("1")
            await person.until("-- the next model call uses lab/lab-1\n> ")
