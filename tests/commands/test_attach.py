"""`zot call` and `zot attach` with a daemon that runs."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forked import Forked, ForkServer
from harness import PATIENCE_S, environment, eventually
from shell import Said
from ui.terminal.test_process import pty_process


class Kept:
    """A daemon with a home of its own, and commands that find it."""

    def __init__(self, directory: Path, fork_server: ForkServer) -> None:
        self.directory = directory
        self.socket = directory / "home" / "data" / "daemon.sock"
        self._fork_server = fork_server
        self._env = environment({"ZOT_HOME": str(directory / "home")})
        (directory / "home").mkdir()
        (directory / "home" / "config.toml").write_text('[agents.careful]\nprovider = "lab"\npolicy = ["bash=ask"]\n')

    def start(self, *argv: str) -> Forked:
        return self._fork_server.fork(argv, self.directory, self._env)

    def run(self, *argv: str, typed: bytes = b"") -> Said:
        process = self.start(*argv)
        out, err = process.communicate(typed, timeout=PATIENCE_S)
        assert process.returncode is not None
        return Said(out.decode(), err.decode(), process.returncode)

    def newest(self) -> str:
        sessions = json.loads(self.run("call", "session/list", '{"limit":1}').out)["sessions"]
        return str(sessions[0]["sessionId"])

    @contextmanager
    def serving(self) -> Iterator[None]:
        daemon = self.start("daemon", "--provider", "lab")
        try:
            assert eventually(lambda: os.path.exists(self.socket))
            yield
        finally:
            daemon.send_signal(15)
            daemon.communicate()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Kept]:
    made = Kept(tmp_path_factory.mktemp("attach"), fork_server)
    with made.serving():
        yield made


def test_a_call_prints_the_result_and_its_updates_before(kept: Kept) -> None:
    made = kept.run("call", "session/new", '{"agentAlias":"default","sessionId":"called"}')
    assert (made.err, made.code) == ("", 0)
    assert json.loads(made.out)["sessionId"] == "called"
    asked = b'{"sessionId":"called","prompt":"!echo Hello"}'
    *updates, result = map(
        json.loads, kept.run("call", "session/prompt", "-", "--updates", typed=asked).out.split("\n")[:-1]
    )
    assert [update["params"]["type"] for update in updates] == [
        "state",
        "agent_message_chunk",
        "usage",
        "turn_complete",
    ]
    assert (result["stopReason"], result["content"]) == ("end_turn", "Hello")


@pytest.mark.parametrize(
    ("argv", "err", "code"),
    [
        (["session/cancel", '{"sessionId":"none"}'], "zot: session/cancel: error -32000: ", 1),
        (["nonsense"], "zot: nonsense: error -32601: Unknown method: nonsense", 1),
        (["session/prompt", "[]"], "zot: the parameters are not a JSON object: ", 2),
        ([], "zot: name a method: zot call METHOD [JSON]", 2),
        (["status", "--socket", "/no"], "zot: No daemon is running at /no. Start one with: zot daemon\n", 3),
    ],
)  # fmt: skip
def test_a_failed_call_prints_code_and_reason(kept: Kept, argv: list[str], err: str, code: int) -> None:
    said = kept.run("call", *argv)
    assert (said.out, said.err[: len(err)], said.code) == ("", err, code)


def test_a_late_answer_is_a_failure(kept: Kept) -> None:
    kept.run("call", "session/new", '{"agentAlias":"default","sessionId":"slow"}')
    said = kept.run("call", "session/prompt", '{"sessionId":"slow","prompt":"!stall"}', "--timeout", "0.1")
    assert (said.out, said.err, said.code) == ("", "zot: session/prompt: no answer within 0.1 s\n", 1)
    assert kept.run("call", "session/cancel", '{"sessionId":"slow"}').code == 0


def test_an_overlong_request_is_refused_at_once(kept: Kept) -> None:
    typed = b'{"sessionId":"s","prompt":"%b"}' % (b"x" * (17 << 20))
    said = kept.run("call", "session/prompt", "-", "--timeout", "20", typed=typed)
    assert said.code == 1
    assert "error -32600: the line is longer than 16777216 bytes" in said.err


def test_a_line_that_is_too_long_to_be_read_is_named(kept: Kept) -> None:
    said = kept.run("attach", "--new", "--max-line-bytes", "20", typed=b"%b\n!echo Hello\n" % (b"x" * 21))
    assert "Hello" in said.out
    assert "zot: a line is longer than 20 bytes and was not read" in said.err
    assert said.code == 1


def test_typed_prompts_are_sent_and_updates_shown(kept: Kept) -> None:
    said = kept.run("attach", "--new", typed=b"!echo Hello\n\n!bash echo made\n")
    assert said.code == 0
    assert said.out.startswith("> !echo Hello\nHello\n\n> !bash echo made\n")
    assert "attached to" in said.err
    assert kept.run("attach", "--new", typed=b"!stall\n/cancel\n/approve\n").out == "> !stall\n! cancelled\n\n"


def test_piped_lines_answer_the_questions_of_earlier_prompts(kept: Kept) -> None:
    typed = b"!bash echo one\n/approve\n!bash echo two\n/reject\n!echo three\n/approve\n"
    said = kept.run("attach", "--new", "--agent", "careful", typed=typed)
    answers = [line.split(" by ")[0] for line in said.out.split("\n") if " by " in line or line == "three"]
    assert answers == ["? allow_once", "? reject", "three"]
    assert (said.code, "no approval is waiting" in said.err) == (0, True)


def test_a_command_that_is_piped_in_is_shown_to_the_end_of_its_run(tmp_path: Path, fork_server: ForkServer) -> None:
    kept = Kept(tmp_path, fork_server)
    extension = tmp_path / "home" / "extensions" / "asker"
    extension.mkdir(parents=True)
    (extension / "extension.json").write_text(
        '{"name":"asker","version":"1","exec":"zot-python","args":["main.py"],"enabled":true}'
    )
    (extension / "main.py").write_text(
        "from zot import ext\nasker = ext.Extension('asker')\n"
        "@asker.command\ndef ask(args): return ext.prompt(f'!echo asked {args}')\nasker.run()\n"
    )
    with kept.serving():
        said = kept.run("attach", "--new", typed=b"/ask once\n")
        unknown = kept.run("attach", "--new", typed=b"/nonsense\n")
    assert (said.code, "asked once\n" in said.out) == (0, True), said
    assert (unknown.code, "nonsense" in unknown.err) == (1, True)


def test_a_turn_that_fails_fails_what_was_piped_in(kept: Kept) -> None:
    said = kept.run("attach", "--new", typed=b"!script status 400\n!echo after it\n")
    assert ("after it" in said.out, said.code) == (True, 1)


def test_a_cut_off_answer_is_reported_as_by_a_single_prompt(kept: Kept) -> None:
    cut_off = "the answer was cut off at the model's length limit"
    said = kept.run("attach", "--new", typed=b'!script say "half of" ;; stop length\n!echo whole\n')
    assert (f"half of\n! {cut_off}\n" in said.out, "whole" in said.out) == (True, True)
    assert (said.err.endswith(f"\nzot: {cut_off}\n"), said.code) == (True, 1)
    alone = kept.run("-p", "!length", "--provider", "lab")
    assert (alone.err, alone.code) == (f"zot: {cut_off}\n", 1)


def test_another_client_answers_a_question_from_its_keyboard(kept: Kept) -> None:
    first = kept.start("attach", "--new", "--agent", "careful")
    first.stdin.write(b"!bash echo allowed\n")
    first.stdin.flush()
    shown = b""
    while b"-- /approve or /reject" not in shown:
        shown += os.read(first.stdout.fileno(), 1 << 16)
    second = kept.run("attach", typed=b"/reject now\n/nonsense\n/quit\n")
    assert "no command" in second.err or "nonsense" in second.err
    out, _ = first.communicate()
    assert "? reject" in (shown + out).decode()
    assert first.returncode == 0


def test_a_client_that_joins_in_mid_answer_sees_all_of_it(kept: Kept) -> None:
    first = kept.start("attach", "--new")
    first.stdin.write(b'!script say "half of" ;; say " it" ;; stall\n')
    first.stdin.flush()
    shown = b""
    while b"half of it" not in shown:
        shown += os.read(first.stdout.fileno(), 1 << 16)
    second = kept.start("attach")
    told = b""
    while b"half of it" not in told:
        told += os.read(second.stdout.fileno(), 1 << 16)
    assert told.startswith(b"> !script say")
    for process, typed in ((second, b"/cancel\n/quit\n"), (first, b"")):
        process.communicate(typed, timeout=PATIENCE_S)
        assert process.returncode == 0


def test_a_session_is_found_by_its_id_prefix_and_shown_from_its_first_event(kept: Kept) -> None:
    kept.run("call", "session/new", '{"agentAlias":"default","sessionId":"beginning-of-it"}')
    kept.run("call", "session/prompt", '{"sessionId":"beginning-of-it","prompt":"!echo before"}')
    said = kept.run("attach", "beginning", "--after", "0", typed=b"//echo\n")
    assert said.out.startswith("> !echo before\nbefore\n\n> /echo\n")
    wrong = kept.run("attach", "nothing")
    assert (wrong.out, wrong.code) == ("", 1)
    assert wrong.err.startswith("zot: no session matches 'nothing'")
    assert "--after x: must be a whole number\n" in kept.run("attach", "beginning", "--after", "x").err


def test_without_a_daemon_attach_fails(kept: Kept, tmp_path: Path) -> None:
    said = kept.run("attach", "--socket", str(tmp_path / "none"))
    assert (said.out, said.code) == ("", 3)
    assert said.err == f"zot: No daemon is running at {tmp_path / 'none'}. Start one with: zot daemon\n"


@pytest.mark.parametrize("argv", [("call", "status"), ("attach", "--new")], ids=lambda argv: argv[0])
def test_attach_can_wait_for_a_daemon_that_is_about_to_start(
    tmp_path: Path, fork_server: ForkServer, argv: tuple[str, ...]
) -> None:
    kept = Kept(tmp_path, fork_server)
    assert kept.run(*argv).code == 3
    waiting = kept.start(*argv, "--wait", str(PATIENCE_S))
    with kept.serving():
        _, err = waiting.communicate(b"!echo here\n", timeout=PATIENCE_S)
    assert waiting.returncode == 0, err


@pytest.mark.parametrize("place", [(), ("--socket", "home/data/daemon.sock")], ids=["found", "named"])
@pytest.mark.parametrize(
    ("flags", "begun", "leaving"),
    [
        ((), b"ready", b"\x11"),
        (("--plain",), b"/cancel ends a turn", b"/quit\n"),
        (("--plain",), b"/cancel ends a turn", b"\x04"),
    ],
    ids=["screen", "quit", "end"],
)
def test_leaving_prints_how_to_resume(
    kept: Kept, flags: tuple[str, ...], begun: bytes, leaving: bytes, place: tuple[str, ...]
) -> None:
    kept.run("call", "session/new", '{"agentAlias":"default","sessionId":"to go on"}')
    way_back = ("attach", "'to go on'", *place)
    with pty_process(kept.directory, "-m", "zot", "attach", "to go on", *flags, *place) as person:
        person.until(begun)
        person.type(leaving)
        assert person.end() == 0
    assert person.written.endswith(f"To continue this session: zot {' '.join(way_back)}\r\n".encode())


def test_an_interrupt_prints_how_to_resume(kept: Kept) -> None:
    with pty_process(kept.directory, "-m", "zot", "attach", "--new", "--plain") as person:
        person.until(b"/cancel ends a turn")
        person.process.send_signal(signal.SIGINT)
        assert person.end() == 130
    assert re.search(rb"\r\nTo continue this session: zot attach \S+\r\n$", person.written)


def test_a_session_whose_directory_is_gone_continues_in_a_named_one(kept: Kept) -> None:
    here, there = kept.directory / "here", kept.directory / "there"
    for place in (here, there):
        place.mkdir()
    assert kept.run("attach", "--new", "--cwd", "here", typed=b"!bash pwd\n").out.count(str(here)) == 1
    moving = ("attach", "--cwd", "there")
    stays = kept.run(*moving)
    assert (
        f"works in {here}, which exists: --cwd is not needed" in stays.err,
        stays.code,
    ) == (True, 1)
    kept.run("call", "session/close", json.dumps({"sessionId": kept.newest()}))
    here.rmdir()
    lost = kept.run("attach", typed=b"!echo hi\n")
    assert ("zot attach SESSION --cwd DIR" in lost.err, lost.code) == (True, 1)
    moved = kept.run(*moving, typed=b"!bash pwd\n")
    assert (str(there) in moved.out, moved.code) == (True, 0)


def test_a_closed_session_is_resumed_by_attaching_to_it(kept: Kept) -> None:
    assert kept.run("attach", "--new", typed=b"!echo one\n").code == 0
    closing = ("call", "session/close", json.dumps({"sessionId": kept.newest()}))
    assert kept.run(*closing).code == 0
    assert "is closed" in kept.run(*closing).err
    again = kept.run("attach", typed=b"!echo two\n")
    assert ("two" in again.out, again.code) == (True, 0)


@pytest.mark.parametrize("last", ["a turn", "a new beginning", "a setting"])
def test_past_updates_are_shown_even_without_input(kept: Kept, last: str) -> None:
    name = last.replace(" ", "-")
    kept.run("call", "session/new", json.dumps({"agentAlias": "default", "sessionId": name}))
    assert kept.run("attach", name, "--after", "0").out == "", "nothing has happened"
    kept.run("call", "session/prompt", json.dumps({"sessionId": name, "prompt": "!echo one"}))
    if method := {"a new beginning": "session/clear", "a setting": "session/configure"}.get(last):
        asked = {"sessionId": name, "overrides": {"reasoning": "low"}}
        assert kept.run("call", method, json.dumps(asked)).code == 0
    said = kept.run("attach", name, "--after", "0")
    more = "! the conversation was cleared\n" if last == "a new beginning" else ""
    assert (said.out, said.code) == (f"> !echo one\none\n\n{more}", 0)
    assert kept.run("attach", name, "--after", "999").out == ""
