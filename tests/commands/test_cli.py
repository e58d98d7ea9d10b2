"""The command line: its output, also when no process reads it."""

from __future__ import annotations

import os
import pty
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from zot import cli, files

PATIENCE_S = 60


def zot(*words: str, redirect: str = "") -> subprocess.CompletedProcess[str]:
    line = f'exec "$0" -m zot {" ".join(words)} {redirect}'
    return subprocess.run(
        ["/bin/sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def quick(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line without shell syntax, from a process that has zot loaded."""
    done = forked.run(shlex.split(line), env=os.environ)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["rpc", "--help"], ["lab", "--help"]])
def test_the_requested_text_is_printed(words: list[str]) -> None:
    done = zot(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "zot" in done.stdout


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["rpc", "--help"]])
def test_a_full_disk_is_reported_in_one_line(words: list[str]) -> None:
    done = zot(*words, redirect=">/dev/full")
    assert (done.returncode, done.stderr) == (1, "zot: the output could not be written: No space left on device\n")


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["rpc", "--help"]])
def test_a_closed_output_is_not_an_error(words: list[str]) -> None:
    done = zot(*words, redirect="| true; exit 0")
    assert (done.returncode, done.stderr) == (0, "")


def test_on_windows_one_sentence_says_that_zot_does_not_run_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "argv", ["zot", "rpc"])
    with pytest.raises(SystemExit, match=r"^zot: zot does not run on Windows; it needs Linux or macOS"):
        cli.main()
    with pytest.raises(ImportError, match="zot does not run on Windows"):
        runpy.run_path(files.__file__)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("rcp", "; did you mean rpc?"),
        ("deamon", "; did you mean daemon?"),
        ("frobnicate", "; to ask the agent: zot -p 'frobnicate'"),
    ],
)
def test_an_unknown_command_is_answered_with_the_likely_one(word: str, hint: str) -> None:
    done = zot(word)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"zot: unknown command {word!r}{hint}\nTry: zot --help\n"


def test_an_error_cannot_control_the_terminal(tmp_path: Path) -> None:
    env = {**os.environ, "ZOT_HOME": str(tmp_path / "home")}
    done = forked.run(["-p", "hello", "--provider", "lab", "--cwd", "\x1b]0;PWNED\x07"], cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert done.stderr.decode() == f"zot: {tmp_path}/\\x1b]0;PWNED\\x07 is not a directory; choose another cwd\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "zot skills needs a subcommand: list, trust, untrust. Try: zot skills"),
        (("lits",), "zot skills has no subcommand 'lits'; did you mean list? Try: zot skills"),
        (("trust",), "zot skills trust takes DIR. Try: zot skills trust"),
        (("list", "more"), "zot skills list takes no words. Try: zot skills list"),
    ],
)
def test_skills_used_wrongly_are_explained(words: tuple[str, ...], told: str) -> None:
    done = quick(" ".join(["skills", *words]))
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"zot: {told} --help\n")


def test_names_that_speak_to_a_terminal_are_listed_escaped(tmp_path: Path) -> None:
    for name in ("a\x1b[2J; id", "b c"):
        skill = tmp_path / ".zot" / "skills" / name
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: a\ndescription: d\n---\n")
    done = forked.run(["skills", "list"], cwd=tmp_path, env={**os.environ, "ZOT_HOME": str(tmp_path / "home")})
    there = f"{tmp_path}/.zot/skills"
    hint = "its name has characters that cannot be seen; rename it before you trust it"
    assert done.stdout.decode().splitlines()[-2:] == [
        f"not trusted: {there}/a\\x1b[2J; id; {hint}",
        f"not trusted: {there}/b c; to use it: zot skills trust '{there}/b c'",
    ]


def test_a_skill_of_a_project_is_used_once_it_is_trusted_and_not_after_it_changed(tmp_path: Path) -> None:
    skill = tmp_path / ".zot" / "skills" / "greet"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: greet\ndescription: How to greet.\n---\nSay hello.\n")

    def skills(*words: str) -> str:
        done = forked.run(["skills", *words], cwd=tmp_path, env={**os.environ, "ZOT_HOME": str(tmp_path / "home")})
        return (done.stdout + done.stderr).decode()

    assert f"not trusted: {skill}; to use it: zot skills trust {skill}\n" in skills("list")
    assert skills("trust", str(skill)) == f"trusted {skill}\n"
    assert "How to greet." in skills("list")
    (skill / "SKILL.md").write_text("---\nname: greet\ndescription: How to rob.\n---\nSay nothing.\n")
    assert "How to rob." not in skills("list")
    assert "no longer trusted" in skills("untrust", str(skill))
    assert "was not trusted" in skills("untrust", str(skill))


@pytest.mark.parametrize(
    "words",
    [
        "rpc --frobnicate", "rpc --model", "rpc --max-steps none", "rpc --no-tools=1", "rpc --ext",
        "rpc --session a --no-session", "-p hi --frobnicate", "-p --json hi", "-p -c --no-session hi",
        "-p --provider lab </dev/null",
        "--json hi --features seq,frobnication", "models word", "models --live", "prompt word", "doctor word", "login",
        "logout --frobnicate", "lab", "lab serve --port x", "skills list --frobnicate", "sessions list --frobnicate",
        "sessions", "--provider lab hi", "--model x rpc"
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_code_two_everywhere(words: str) -> None:
    done = zot(words) if "<" in words else quick(words)
    assert (done.returncode, done.stdout) == (2, done.stdout if "--json" in words else "")
    assert done.stderr.startswith("zot: ")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--provider lab hi", "unknown command 'hi' after the flags; to ask the agent: zot -p PROMPT"),
        ("--provider lab", "standard input is not a terminal; to ask the agent: zot -p PROMPT"),
        ("--provider lba", "--provider lba: unknown provider 'lba'; known: anthropic, deepseek, gemini, groq, kimi, "
         "lab, mistral, ollama, openai, openrouter, xai; did you mean lab?"),
        ("--polcy x", "unknown flag --polcy; did you mean --policy?"),
        ("--model x rpc", "the command comes first: zot rpc --model ..."),
        ("--json hi --features seq,more", "--features seq,more: unknown feature 'more'; known: seq, thinking, "
         "retries, prices, approvals, compaction, extensions, questions, mcp"),
        ("""-p "$(printf 'a\\377')" """, "the prompt is not UTF-8"),
    ],
)  # fmt: skip
def test_a_line_that_is_misread_is_answered_with_a_hint(words: str, hint: str) -> None:
    assert zot(words).stderr.split("\n")[0] == f"zot: {hint}"


@pytest.mark.parametrize("words", ["--version", "models", "prompt", "-p hi --provider lab", "--json hi --provider lab"])
def test_without_a_standard_output_the_command_refuses_to_run(words: str) -> None:
    done = zot(words, redirect=">&-")
    assert (done.returncode, done.stderr) == (1, "zot: standard output is closed\n")
    assert zot(words, redirect=">&- 2>&-").returncode == 1


@pytest.mark.parametrize("words", ["-p hi", "models", "prompt", "doctor", "sessions list"])
def test_an_interrupt_during_start_prints_nothing(words: str) -> None:
    """The signal arrives while the first module after the command line is imported."""
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'zot.errors':\n"
        "            sys.meta_path.remove(self)\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        f"sys.argv = ['zot', *{words.split()!r}]\n"
        "from zot.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_rpc_at_a_terminal_explains_itself() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "zot", "rpc", "--provider", "lab"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    first = process.stderr.readline()
    os.write(ours, b"\x04")
    _, errors = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    os.close(theirs)
    hint = b"zot: rpc reads one JSON object per line; Ctrl-D ends it. To ask the agent: zot -p PROMPT\n"
    assert (process.returncode, first, errors) == (0, hint, b"")


def test_the_flag_rpc_may_appear_anywhere() -> None:
    done = forked.run(["--no-yolo", "--provider", "lab", "--rpc"], given=b'{"type":"ping","id":1}\n', env=os.environ)
    assert (done.returncode, b'"id":1' in done.stdout) == (0, True)
    assert b"--no-yolo" in done.stderr
