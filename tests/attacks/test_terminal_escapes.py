"""Text of models, extensions, repositories and errors on a terminal is escaped. Elsewhere it is raw."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment
from zot.agent.approvals import summarise
from zot.config.policy import subject_of
from zot.extensions.log import log_path
from zot.serve.stdio import Diagnostics, TerminalOutput, write_all
from zot.text import escaped, escaped_bytes

#: What a terminal obeys: a title, the clipboard, DCS, a colour, C1 forms of these, and text in another order.
HOSTILE = "a\x1b]0;title\x07\x1b]52;c;eA==\x07\x1bP+q\x1b\\\x1b[31m\x9b31m\x9d0;x\x9c\x90q\u202eb\u2066c\x08\x7f\r!"


def obeyed(written: str) -> set[str]:
    """Return the characters of terminal output that do more than show themselves. A terminal ends lines with CR LF."""
    return {one for one in written.replace("\r\n", "\n") if not (one.isprintable() or one in "\n\t")}


class Screen:
    """A terminal, and the bytes written to it."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()

    def read(self) -> str:
        """Return the bytes written since, after the other end is closed."""
        data = b""
        try:
            while piece := os.read(self.ours, 1 << 16):
                data += piece
        except OSError:  # The end of a terminal.
            pass
        os.close(self.ours)
        return data.decode()


def on_terminal(home: Path, *argv: str) -> str:
    """Run a command with both outputs on a terminal; return its output."""
    screen = Screen()
    env = environment({"ZOT_HOME": str(home), "TERM": "xterm"})
    command = [sys.executable, "-m", "zot", *argv]
    with subprocess.Popen(
        command, cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=screen.theirs, stderr=screen.theirs
    ) as process:
        os.close(screen.theirs)
        written = screen.read()
        process.wait(PATIENCE_S)
    return written


def through_pipe(home: Path, *argv: str) -> str:
    env = environment({"ZOT_HOME": str(home)})
    command = [sys.executable, "-m", "zot", *argv]
    done = subprocess.run(
        command, cwd=home, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=PATIENCE_S
    )
    return (done.stdout + done.stderr).decode()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "AGENTS.md").write_text(f"Be kind. {HOSTILE}\n")
    return home


def test_model_output_is_escaped(home: Path) -> None:
    (home / "script").write_text(f"say {json.dumps(HOSTILE)}\n")
    argv = ("-p", "hi", "--provider", "lab", "--script", str(home / "script"), "--no-session")
    assert HOSTILE in through_pipe(home, *argv)
    written = on_terminal(home, *argv)
    assert "title" in written
    assert obeyed(written) == set()


def test_the_system_prompt_with_text_of_a_repository_is_escaped(home: Path) -> None:
    assert "\x1b]0;title" in through_pipe(home, "prompt", "--provider", "lab")
    written = on_terminal(home, "prompt", "--provider", "lab")
    assert "title" in written
    assert obeyed(written) == set()


def test_the_log_of_an_extension_is_escaped(home: Path) -> None:
    path = Path(log_path(str(home), "x"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HOSTILE}\n")
    assert HOSTILE in through_pipe(home, "ext", "logs", "x")
    written = on_terminal(home, "ext", "logs", "x")
    assert "title" in written
    assert obeyed(written) == set()


def test_errors_quote_arguments_escaped(home: Path) -> None:
    for argv in ((f"\x1b]0;x\x07{HOSTILE}",), ("config", "--config-dir", "\x9b31m/x"), ("rpc", "\x1b[31m")):
        written = on_terminal(home, *argv)
        assert written != ""
        assert obeyed(written) == set(), argv


def test_text_and_bytes_on_standard_output() -> None:
    screen = Screen()
    with os.fdopen(screen.theirs, "wb") as raw:
        output = TerminalOutput(io.TextIOWrapper(raw, "utf-8", write_through=True))
        assert output.write(HOSTILE) == len(HOSTILE)
        output.flush()
        data = f"{HOSTILE}é".encode()
        for at in range(len(data)):  # Also if a character comes in pieces.
            output.buffer.write(data[at : at + 1])
        output.buffer.write(b"\xff\x9b")
        output.buffer.flush()
    written = screen.read()
    assert obeyed(written) == set()
    assert "é" in written


def test_diagnostics_and_frames() -> None:
    screen = Screen()
    diagnostics = Diagnostics(screen.theirs)
    diagnostics.write(f"{HOSTILE}\n")
    diagnostics.drain(PATIENCE_S)
    write_all(screen.theirs, f"{HOSTILE}\n".encode())
    os.close(screen.theirs)
    if diagnostics._own is not None:
        os.close(diagnostics._own)
    written = screen.read()
    assert written.count("title") == 2
    assert obeyed(written) == set()


def test_a_pipe_gets_the_bytes_unchanged() -> None:
    reader, writer = os.pipe()
    write_all(writer, HOSTILE.encode() + b"\xff")
    os.close(writer)
    assert os.read(reader, 1 << 16) == HOSTILE.encode() + b"\xff"
    os.close(reader)


@pytest.mark.parametrize("code", [*range(32), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F),
                                  *range(0x2066, 0x206A), 0xFEFF, 0xD800])  # fmt: skip
def test_every_control_is_escaped(code: int) -> None:
    one = chr(code)
    expected = one if one in "\n\t" else f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    assert escaped(f"a{one}b") == f"a{expected}b"


def test_printable_text_of_every_script_stays_unchanged() -> None:
    text = "naïve 漢字\u3000😀\u200d👩 \u00a0\tx\nשלום"
    assert escaped(text) == text
    assert escaped_bytes(text.encode()) == text.encode()
    assert escaped("a\r\nb") == "a\nb"


#: Characters that leave no mark on a screen: without width, without ink, or with a meaning for the order of others.
UNSEEN = [
    0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2028,
    0x202A, 0x202E, 0x2060, 0x2061, 0x2063, 0x2066, 0x2069, 0x206A, 0x3164, 0xFE00, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFF9,
    0xE0001, 0xE0041, 0xE007F, 0xE0100,
]  # fmt: skip
#: Characters that look like a blank or a line end and are none, besides.
BLANKS = [0xA0, 0x1680, 0x2000, 0x2003, 0x200A, 0x202F, 0x205F, 0x2800, 0x3000, 0x0A, 0x0D, 0x85]


@pytest.mark.parametrize("code", UNSEEN)
def test_a_character_that_leaves_no_mark_is_shown_as_an_escape(code: int) -> None:
    shown = escaped(f"rm{chr(code)} x")
    assert chr(code) not in shown
    assert f"{code:x}" in shown


def test_emoji_and_scripts_that_need_joiners_stay_whole() -> None:
    for text in ("\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f469\u200d\U0001f4bb", "\u0645\u06cc\u200c\u062e", "e\u0301"):
        assert escaped(text) == text


@pytest.mark.parametrize("code", [*UNSEEN, *BLANKS, 0x1B, 0x9B])
@pytest.mark.parametrize("tool", ["bash", "write", "of-an-extension"])
def test_two_different_calls_never_look_the_same_in_an_approval(tool: str, code: int, tmp_path: Path) -> None:
    """Two calls that differ do not look the same."""

    def asked(text: str) -> str:
        args = {"command": text} if tool == "bash" else {"path": text} if tool == "write" else {"query": text}
        return summarise(tool, args, subject_of(args, str(tmp_path), tool))

    hidden = asked(f"rm{chr(code)} x")
    assert chr(code) not in hidden
    assert hidden not in (asked("rm x"), asked("rm  x"))
    assert f"{code:x}" in hidden or "\\n" in hidden or "\\r" in hidden


def test_a_line_end_does_not_turn_a_command_into_a_comment(tmp_path: Path) -> None:
    args = {"command": "make # build\nrm -rf ~"}
    assert summarise("bash", args, subject_of(args, str(tmp_path))) == "bash: make # build\\nrm -rf ~"
