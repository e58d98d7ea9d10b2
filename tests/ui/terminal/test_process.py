"""The terminal as a process on a real terminal: its start, and the state in which it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment

CRASH = """
import asyncio
from zot.commands.terminal import run_app
from zot.ui.terminal.app import ZotApp

class First:
    async def home(self):
        secret = "sk-secret"
        raise RuntimeError("boom")

async def main():
    return await run_app(ZotApp(First()))

raise SystemExit(asyncio.run(main()))
"""
#: As it is where only the core is installed.
BARE = """
import sys
sys.modules.update(dict.fromkeys(("textual", "rich", "markdown_it", "pygments")))
from zot.cli import main
main()
"""
HINT = b"zot: the extra `tui` is missing, so zot prints lines; in a clone of zot, run: pip install '.[tui]'\r\n"
#: What makes a terminal as it was: the usual screen, the cursor, no mouse, no bracketed paste.
RESTORED = (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1003l", b"\x1b[?2004l")


class PtyProcess:
    """A program at a terminal, and its output there."""

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str], *, errors: int | None = None) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs if errors is None else errors}
        self.process = subprocess.Popen(argv, cwd=cwd, env=env, start_new_session=True, **streams)  # type: ignore[call-overload]  # the streams are three of many
        self.written = b""

    @property
    def now(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def until(self, text: bytes) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            self._take(0.1)

    def type(self, data: bytes) -> None:
        os.write(self._mine, data)

    def end(self) -> int:
        """Wait for its end, reading all the while."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "did not end"
            self._take(0.05)
        while self._take(0.0):
            pass
        return int(self.process.returncode)

    def _take(self, within_s: float) -> bool:
        if not select.select([self._mine], [], [], within_s)[0]:
            return False
        self.written += os.read(self._mine, 65536)
        return True

    def stops(self) -> None:
        """Wait until it is stopped, reading all the while."""
        deadline = time.monotonic() + PATIENCE_S
        while os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG) == (0, 0):
            assert time.monotonic() < deadline, "did not stop"
            self._take(0.05)
        while self._take(0.0):
            pass

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        os.close(self._mine)
        os.close(self._theirs)


@contextmanager
def pty_process(tmp_path: Path, *argv: str, errors: int | None = None, **env: str) -> Iterator[PtyProcess]:
    variables = environment(
        {"HOME": str(tmp_path), "ZOT_HOME": str(tmp_path / "home"), "TERM": "xterm-256color", **env}
    )
    program = [sys.executable, *(argv or ("-m", "zot", "--provider", "lab"))]
    sitting = PtyProcess(program, tmp_path, variables, errors=errors)
    try:
        yield sitting
    finally:
        sitting.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_restores_the_terminal(tmp_path: Path, number: signal.Signals) -> None:
    with pty_process(tmp_path) as person:
        person.until(b"ready")
        assert person.now != person.before
        person.process.send_signal(number)
        assert person.end() == 128 + number
        assert person.now == person.before
        assert [code for code in RESTORED if code not in person.written] == []


@pytest.mark.parametrize(
    ("term", "ready", "typed", "answer", "leaving"),
    [
        ("xterm-256color", b"\x1b[?25l", b"!echo said it\r", b"  said it", b"\x11"),
        ("dumb", b"> ", b"!echo said it\n", b"said it\r\n", b"\x04"),
    ],
)
def test_the_terminal_starts_with_standard_error_in_a_file(
    tmp_path: Path, term: str, ready: bytes, typed: bytes, answer: bytes, leaving: bytes
) -> None:
    with open(tmp_path / "errors", "wb") as file, pty_process(tmp_path, errors=file.fileno(), TERM=term) as person:
        person.until(ready)
        person.type(typed)
        person.until(answer)
        person.type(leaving)
        assert person.end() == 0
        assert person.now == person.before
    assert (tmp_path / "errors").read_bytes() == b""


def test_the_terminal_accepts_the_flags_of_the_original(tmp_path: Path) -> None:
    foreign = ("--with-skills", "--no-yolo", "--list-models")
    program = ("-m", "zot", "--provider", "lab", *foreign, "hello", "there")
    with (
        open(tmp_path / "errors", "wb") as file,
        pty_process(tmp_path, *program, errors=file.fileno(), TERM="dumb") as person,
    ):
        person.until(b"> ")
        person.type(b"!echo said it\n")
        person.until(b"said it\r\n")
        person.type(b"\x04")
        assert person.end() == 0
    told = (tmp_path / "errors").read_text().splitlines()
    assert [line.partition(" has no effect: ")[0] for line in told] == [
        f"zot: {word}" for word in (*foreign, "'hello'")
    ]


def test_keys_typed_during_start_up_are_kept(tmp_path: Path) -> None:
    with pty_process(tmp_path) as person:
        person.until(b"\x1b[?25l")  # From here on the system no longer makes another key of Enter.
        person.type(b"!echo just like k so\r")
        person.until(b"  just like k so")
        person.type(b"\x11")
        assert person.end() == 0


def test_a_crash_restores_the_terminal_and_shows_no_secrets(tmp_path: Path) -> None:
    with pty_process(tmp_path, "-c", CRASH) as person:
        assert person.end() == 1
        assert person.now == person.before
        assert [code for code in RESTORED if code not in person.written] == []
        shown = person.written.rpartition(b"\x1b[?1049l")[2]
        assert b"RuntimeError: boom" in shown
        assert b"sk-secret" not in re.sub(rb'secret = "[^"]*"', b"", shown)


def test_a_line_terminal_gets_line_mode(tmp_path: Path) -> None:
    with pty_process(tmp_path, TERM="dumb") as person:
        person.until(b"> ")
        person.type(b"!bash echo from a tool\n")
        person.until(b"finished.")
        person.type(b"/cost\n")
        person.until(b"input      200")
        person.type(b"!retry 1\n")
        person.until(b"Answered after 1")
        person.type(b"\x04")
        assert person.end() == 0
        assert person.written.count(b"status 529") == 1
        assert b"\x1b" not in person.written
        assert b"* bash echo from a tool" in person.written


@pytest.mark.parametrize("leaving", [b"/exit\n", b"\x04"])
def test_line_mode_prints_how_to_resume_and_control_c_at_the_prompt_asks_again(tmp_path: Path, leaving: bytes) -> None:
    with pty_process(tmp_path, "-m", "zot", "--provider", "lab", "--session", "one", TERM="dumb") as person:
        person.until(b"> ")
        person.type(b"!echo said\n")
        person.until(b"\nsaid\r\n> ")
        person.process.send_signal(signal.SIGINT)
        person.until(b"\nsaid\r\n> \r\n> ")
        person.type(leaving)
        assert person.end() == 0
        assert person.written.endswith(b"\r\nTo continue this session: zot --resume one\r\n")


def test_line_mode_prints_how_to_resume_even_when_left_at_a_question(tmp_path: Path) -> None:
    with pty_process(tmp_path, "-m", "zot", "--provider", "lab", "--session", "one", TERM="dumb") as person:
        person.until(b"> ")
        person.type(b"!script status 400\n")
        person.until(b"  number, or nothing: ")
        person.type(b"\x04")
        assert person.end() == 0
        assert person.written.endswith(b"  number, or nothing: \r\nTo continue this session: zot --resume one\r\n")


def test_a_terminal_with_a_named_session_can_begin_another(tmp_path: Path) -> None:
    with pty_process(tmp_path, "-m", "zot", "--provider", "lab", "--session", "one", TERM="dumb") as person:
        person.until(b"> ")
        person.type(b"!echo into the first\n")
        person.until(b"\ninto the first")
        person.type(b"/session new\n")
        person.until(b"-- session ")
        person.type(b"/session\n")
        person.until(b"messages   0")
        assert b"-- session    one" not in person.written
        person.type(b"\x04")
        assert person.end() == 0


@pytest.mark.parametrize("term", ["dumb", "xterm-256color"])
def test_an_unwritable_home_is_reported(tmp_path: Path, term: str) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "journal.db").symlink_to("journal.db")
    with pty_process(tmp_path, TERM=term) as person:
        person.until(b"this session is not recorded: ")
        person.until(b"> " if term == "dumb" else b"ready")
        person.type(b"/exit\r" if term != "dumb" else b"/exit\n")
        assert person.end() == 0


def test_without_the_extra_line_mode_starts_with_a_hint(tmp_path: Path) -> None:
    with pty_process(tmp_path, "-c", BARE, "--provider", "lab", "--policy", "bash=ask") as person:
        person.until(HINT)
        person.until(b"> ")
        person.type(b"!bash echo from a tool\n")
        person.until(b"allow it?")
        person.type(b"y\n")
        person.until(b"finished.")
        for said, answered in (
            (b"/help", b"/reload-ext"),
            (b"/session", b"messages"),
            (b"/skills", b"zot"),
            (b"/btw !echo beside it", b"beside it"),
            (b"/export page.html", b"an HTML page needs the package markdown-it-py"),
            (b"/cost", b"input      "),
        ):
            person.written = b""
            person.type(said + b"\n")
            person.until(answered)
        person.type(b"/exit\n")
        assert person.end() == 0
        assert b"\x1b" not in person.written


@pytest.mark.parametrize(("words", "term"), [((), "dumb"), ((), ""), (("--plain",), "xterm-256color")])
def test_line_mode_by_choice_or_necessity_gets_no_hint(tmp_path: Path, words: tuple[str, ...], term: str) -> None:
    with pty_process(tmp_path, "-c", BARE, "--provider", "lab", *words, TERM=term) as person:
        person.until(b"> ")
        person.type(b"\x04")
        assert person.end() == 0
        assert HINT not in person.written
        assert b"\x1b" not in person.written


def test_streaming_does_not_flicker(tmp_path: Path) -> None:
    deltas, rows = 600, 41  # w0 w1 w2 and so on, in 75 columns.
    with pty_process(tmp_path) as person:
        person.until(b"ready")
        person.type(f"!slow {deltas} 0.004\r".encode())
        person.until(b"answering")
        person.written = b""
        person.until(b"ready")
        # Nothing is wiped, and the whole window is written only when it moves: else only the line that grows is.
        assert re.findall(rb"\x1b\[[0-3]?J|\x1b\[\?1049|\x1bc", person.written) == []
        assert person.written.count(b"\x1b[1;1H") <= rows
        person.type(b"\x11")
        assert person.end() == 0


def test_a_stalled_terminal_does_not_stop_the_run(tmp_path: Path) -> None:
    lines = " ".join(f'"line {number} of many\\n\\n"' for number in range(300))
    script = f'pace 3ms ;; say {lines} ;; call bash {{"command": "touch gone-on"}} ;; --- ;; say \'that is all\''
    (tmp_path / "long.lab").write_text(script.replace(" ;; ", "\n"))
    with pty_process(tmp_path, "-m", "zot", "--provider", "lab", "--script", "long.lab") as person:
        person.until(b"ready")
        person.type(b"go\r")
        deadline = time.monotonic() + PATIENCE_S
        while not (tmp_path / "gone-on").exists():  # Meanwhile nothing is read.
            assert time.monotonic() < deadline, "it waits for the terminal"
            time.sleep(0.05)
        person.written = b""
        person.until(b"that is all")
        assert len(person.written) < 60_000  # Lines that scrolled away at once were omitted.
        person.type(b"\x11")
        assert person.end() == 0


def test_control_z_suspends_and_restores_the_terminal(tmp_path: Path) -> None:
    with pty_process(tmp_path) as person:
        person.until(b"ready")
        person.type(b"half a thought")
        person.until(b"half a thought")
        person.type(b"\x1a")
        person.stops()
        assert person.now == person.before
        assert [code for code in RESTORED if code not in person.written] == []
        person.written = b""
        person.process.send_signal(signal.SIGCONT)
        person.until(b"half a thought")
        assert b"\x1b[?1049h" in person.written
        assert person.now != person.before
        person.written = b""
        person.process.send_signal(signal.SIGCONT)  # It may come to one that was not stopped, too.
        person.until(b"half a thought")
        person.type(b"\x11")
        assert person.end() == 0
        assert person.now == person.before


def test_a_locale_without_utf_8_gets_only_characters_it_can_show(tmp_path: Path) -> None:
    with pty_process(tmp_path, LC_ALL="C") as person:
        person.until(b"ready")
        person.type(b"\xe9\xff")  # No characters, in no way.
        person.type(b"\x15!echo h\xc3\xa9llo \xe4\xbd\xa0\xe5\xa5\xbd e\xcc\x81nd\r")
        person.until(b"h?llo ???? end")
        person.type(b"\x11")
        assert person.end() == 0
        assert person.written.isascii()


#: A name that would set the title of the terminal, wipe it, and turn its text around.
FORGED = "ev\x1b]0;PWNED\x07\x1b[2Jil\u202ex"


def test_the_name_of_a_session_is_quoted_for_the_shell_and_cannot_control_the_terminal(tmp_path: Path) -> None:
    with pty_process(tmp_path, "-m", "zot", "--provider", "lab", "--session", FORGED) as person:
        person.until(b"ready")
        person.type(b"!echo it is kept\r")
        person.until(b"  it is kept")
        person.type(b"\x11")
        assert person.end() == 0
    assert _raw(person.written) == []
    word = re.search(r"To continue this session: zot --resume (\S+)", person.written.decode())
    assert word is not None
    shown = subprocess.run(["bash", "-c", f"printf %s {word[1]}"], capture_output=True, timeout=PATIENCE_S, check=True)
    assert shown.stdout.decode() == FORGED


@pytest.mark.parametrize("words", [(), ("--plain",)])
def test_an_unknown_session_is_answered_with_shell_commands(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pty_process(tmp_path, "-m", "zot", "--provider", "lab", "--resume", "none", *words) as person:
        assert person.end() == 1
    said = b"zot: no session matches 'none'; list them with: zot sessions list --all"
    assert said in person.written.replace(b"\r\n", b"")


@pytest.mark.parametrize("words", [(), ("--plain",)])
def test_the_name_of_a_directory_cannot_control_the_terminal_at_the_end(tmp_path: Path, words: tuple[str, ...]) -> None:
    place = tmp_path / FORGED
    place.mkdir()
    with pty_process(place, "-m", "zot", "--provider", "lab", "--continue", *words) as person:
        assert person.end() == 1
    assert rb"ev\x1b]0;PWNED\x07\x1b[2Jil\u202ex to continue" in person.written.replace(b"\r\n", b"")
    assert _raw(person.written) == []


def _raw(written: bytes) -> list[bytes]:
    """Return the part of the name that arrived unchanged."""
    return [part for part in (b"\x1b]0;PWNED", b"PWNED\x07", b"\x1b[2Jil", "\u202e".encode()) if part in written]
