"""The conversation that a prompt in a shell belongs to, and the recovery of one that was cut off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S, Zot, eventually
from shell import Shell

LAB = ("--provider", "lab")
JUMPING = str(Path(__file__).parents[1] / "jumping_clock.py")
ORDER = ("first", "second", "third")


def spoken(shell: Shell, session: str) -> list[tuple[str, str]]:
    """Return the texts of a session with their roles, without calls and results."""
    rows = shell.told("show", session)
    return [
        (row["role"], block["text"])
        for row in rows
        if row["type"] == "message"
        for block in row["content"]
        if block["type"] == "text"
    ]


def test_a_prompt_is_kept_under_a_new_id_and_can_be_continued(shell: Shell) -> None:
    assert shell.ask("!echo one") == ("one\n", "", 0)
    assert shell.ask("!echo two") == ("two\n", "", 0)
    newest, oldest = shell.told("list")
    assert newest["id"] != oldest["id"]
    assert shell.ask("!echo three", "-c") == ("three\n", "", 0)
    assert spoken(shell, newest["id"]) == [
        ("user", "!echo two"), ("assistant", "two"), ("user", "!echo three"), ("assistant", "three"),
    ]  # fmt: skip
    assert shell.ask("!echo four", "--resume", oldest["id"][:-1]) == ("four\n", "", 0)
    assert shell.ask("!echo five", "-r") == ("five\n", "", 0)
    assert [words for _, words in spoken(shell, oldest["id"])][-4:] == ["!echo four", "four", "!echo five", "five"]


def test_a_session_keeps_its_settings(shell: Shell) -> None:
    shell.ask("!echo one", "--session", "s")
    elsewhere = shell.user / "elsewhere"
    elsewhere.mkdir()
    argv = ("-p", "!bash pwd", "--resume", "s")
    assert shell.run(*argv, cwd=elsewhere) == ("finished.\n", "", 0)
    [result] = [row for row in shell.told("show", "s") if row.get("role") == "tool"]
    assert str(shell.cwd) in result["content"][0]["content"][0]["text"]


def test_a_session_belongs_to_its_current_directory(shell: Shell) -> None:
    elsewhere = shell.user / "elsewhere"
    elsewhere.mkdir()
    shell.ask("!echo one", "--session", "s")
    shell.ask("!echo two", "--session", "s", "--cwd", str(elsewhere))
    assert [session["id"] for session in shell.told("list", "--cwd", str(elsewhere))] == ["s"]
    assert shell.ask("!echo three", "-c", cwd=elsewhere) == ("three\n", "", 0)
    assert shell.ask("!echo four", "-c").code == 1


def test_a_session_whose_directory_is_gone_suggests_a_remedy(shell: Shell) -> None:
    gone = shell.user / "gone"
    gone.mkdir()
    shell.ask("!echo one", "--session", "s", "--cwd", str(gone))
    gone.rmdir()
    told = f"zot: {gone}, where this session works, is gone; name another directory with --cwd DIR\n"
    assert shell.ask("!echo two", "--session", "s") == ("", told, 1)
    assert shell.ask("!echo two", "--session", "s", "--cwd", str(shell.user)) == ("two\n", "", 0)


def test_kept_files_are_private_and_usable_under_any_umask(shell: Shell) -> None:
    before = os.umask(0o777)
    try:
        shell.ask("!echo one", "--session", "s")
        shell.run("login", "anthropic", "--no-probe", "--command", "echo k")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (shell.home, *shell.home.iterdir())}
    assert modes[shell.home.name] == 0o700
    assert {mode for name, mode in modes.items() if name != shell.home.name} == {0o600}
    assert {"journal.db", "journal.db.lock", "auth.json"} <= modes.keys()


def test_only_sessions_of_the_directory_are_continued(shell: Shell) -> None:
    nothing = f"zot: no session of {shell.cwd} to continue; list all with: zot sessions list --all\n"
    assert shell.ask("!echo one", "--continue") == ("", nothing, 1)
    assert not shell.home.exists()
    shell.ask("!echo elsewhere", cwd=shell.user)
    assert shell.ask("!echo one", "--continue") == ("", nothing, 1)
    assert shell.ask("!echo one", "-c", "--cwd", str(shell.user)) == ("one\n", "", 0)


def test_nothing_is_kept_without_a_prompt_or_with_no_session(shell: Shell) -> None:
    assert shell.ask("!echo one", "--no-session") == ("one\n", "", 0)
    assert shell.run("-p", *LAB).code == 2
    assert not shell.home.exists()


def test_a_prompt_that_was_taken_for_an_id_is_reported(shell: Shell) -> None:
    told = "no prompt; give it as words or on standard input: zot -p PROMPT; 'go on' was read as the id of a session"
    assert shell.run("-p", "-r", "go on", *LAB) == ("", f"zot: {told}\n", 2)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--session", "s", "-c"), "--session and --continue exclude each other"),
        (("-c", "-r", "s"), "--continue and --resume exclude each other"),
        (("--no-session", "-r"), "--resume and --no-session exclude each other"),
        (("--resume", "s"), "no session matches 's'; list them with: zot sessions list --all"),
    ],
)
def test_errors_are_one_line(shell: Shell, flags: tuple[str, ...], message: str) -> None:
    shell.ask("!echo one", "--session", "first")
    code = 2 if "exclude" in message else 1
    assert shell.ask("!echo two", *flags) == ("", f"zot: {message}\n", code)


def test_an_unwritable_store_still_gives_an_answer(shell: Shell) -> None:
    (shell.home / "journal.db").mkdir(parents=True)
    out, err, code = shell.ask("!echo one")
    assert (out, code) == ("one\n", 0)
    assert err.startswith("zot: this session is not recorded: the journal ")
    assert err.count("\n") == 1
    out, err, code = shell.ask("!echo one", "--session", "s")
    assert (out, code, err.count("\n")) == ("", 1, 1)
    assert err.startswith(f"zot: the journal {shell.home}/journal.db cannot be opened: ")


def test_without_a_home_the_prompt_is_still_answered(shell: Shell) -> None:
    env = {name: value for name, value in shell.env.items() if "HOME" not in name}
    told = "zot: this session is not recorded: no directory to record sessions in: set ZOT_HOME or HOME\n"
    assert shell.ask("!echo one", env=env) == ("one\n", told, 0)
    assert shell.ask("!echo one", "-c", env=env).code == 1


def running(shell: Shell, *flags: str) -> subprocess.Popen[bytes]:
    """Start a prompt whose tool does not end, and wait until it runs."""
    process = shell.start("--json", "!bash touch begun; sleep 600", *LAB, *flags)
    assert eventually((shell.cwd / "begun").exists)
    return process


def test_a_running_session_is_refused_to_every_other_process(shell: Shell) -> None:
    process = running(shell, "--session", "s")
    try:
        refusal = f"zot: session 's' is running in process {process.pid}, since "
        for argv in (("-p", "!echo two", "-c", *LAB), ("sessions", "delete", "s", "--yes"), ("sessions", "gc")):
            out, err, code = shell.run(*argv)
            assert (out, code, err.count("\n")) == ("", 1, 1)
            assert err.startswith(refusal)
        [session] = shell.told("list")
        assert (session["running"], session["pid"]) == (True, process.pid)
        assert "  (running) !bash" in shell.sessions("list").out
        assert shell.sessions("fork", "s", "--as", "f") == ("f\n", "", 0)
        assert shell.sessions("export", "s").out.endswith("}\n")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert [row for row in shell.told("show", "s") if row["type"] == "turn_end"] != []
    assert shell.ask("!echo two", "-r", "s") == ("two\n", "", 0)


def test_a_killed_run_can_be_shown_and_continued(shell: Shell) -> None:
    process = running(shell)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    [session] = shell.told("list")
    assert (session["running"], session["pid"]) == (False, None)
    before = shell.told("show", session["id"])
    assert [row["role"] for row in before if row["type"] == "message"] == ["user", "assistant"]
    assert shell.ask("!echo on we go", "--continue") == ("on we go\n", "", 0)
    rows = shell.told("show", session["id"])
    assert calls_without_results(rows) == set()
    assert "    the result was lost: the run was interrupted\n" in shell.sessions("show", session["id"]).out
    assert rows[len(before) :][-1]["content"] == [{"type": "text", "text": "on we go"}]
    assert shell.sessions("check").code == 0


def calls_without_results(rows: list[dict[str, Any]]) -> set[str]:
    blocks = [block for row in rows if row["type"] == "message" for block in row["content"]]
    calls = {block["id"] for block in blocks if block["type"] == "tool_call"}
    return calls - {block["call_id"] for block in blocks if block["type"] == "tool_result"}


def test_rpc_keeps_nothing_unless_asked_to(zot: Callable[..., Zot], tmp_path: Path) -> None:
    env = {"ZOT_HOME": str(tmp_path / "kept")}
    for flags in ((), ("-c",), ("-r", "--no-session"), ("--resume", "s"), ("--continue", "-r")):
        process = zot(*LAB, *flags, env=env)
        process.send({"type": "prompt", "message": "!echo one"})
        process.until(type="done")
        assert process.finish() == []
    assert os.listdir(tmp_path) == []


def test_a_fork_over_rpc_continues_from_its_point(shell: Shell, zot: Callable[..., Zot]) -> None:
    process = zot(*LAB, "--session", "s", env=shell.env, cwd=shell.cwd)
    for word in ("one", "two"):
        process.send({"type": "prompt", "message": f"!echo {word}"})
        process.until(type="done")
    assert process.ask({"type": "fork", "session": "half", "messages": 2})["success"] is True
    process.finish()
    assert shell.ask("!echo three", "--session", "half") == ("three\n", "", 0)
    assert [words for _, words in spoken(shell, "half")] == ["!echo one", "one", "!echo three", "three"]


def test_events_are_the_same_with_a_session(shell: Shell) -> None:
    out, err, code = shell.run("--json", "!echo one", *LAB)
    assert (err, code) == ("", 0)
    assert [json.loads(line)["type"] for line in out.split("\n")[:-1]] == [
        "user_message", "turn_start", "assistant_start", "text_delta", "usage", "assistant_message", "turn_end", "done",
    ]  # fmt: skip


def test_a_chat_of_strangers_is_continued_only_by_its_name(shell: Shell) -> None:
    asked = b'{"request_id":"1","session_id":"s","prompt":"!echo theirs"}'
    for _ in range(2):
        assert shell.run("host", "--provider", "lab", typed=asked).code == 0
        said = shell.ask("!echo mine", "--continue")
        assert (said.out, said.code) == ("", 1)
    shell.ask("!echo mine")
    assert shell.run("host", "--provider", "lab", typed=asked).code == 0
    assert shell.ask("!echo on we go", "-c") == ("on we go\n", "", 0)
    assert shell.ask("!echo to them", "--resume", "host:s") == ("to them\n", "", 0)
    assert [row["messages"] for row in sorted(shell.told("list"), key=lambda row: row["id"])] == [4, 8]


def test_a_person_is_shown_the_session_id_and_a_program_is_not(shell: Shell) -> None:
    assert shell.ask("!echo Yes").err == ""
    [session] = shell.told("list")
    terminal, theirs = os.openpty()
    try:
        process = shell.start("-p", "!echo Yes", "--provider", "lab", "-c", stderr=theirs)
        assert process.communicate(timeout=PATIENCE_S)[0] == b"Yes\n"
        assert os.read(terminal, 1000).decode() == f"zot: session {session['id']}\r\n"
    finally:
        os.close(terminal)
        os.close(theirs)


def test_the_newest_session_is_the_last_used_even_if_the_clock_was_set_back(shell: Shell, tmp_path: Path) -> None:
    clock = tmp_path / "clock"

    def ask(ahead_s: int, *words: str) -> None:
        clock.write_text(str(ahead_s))
        done = subprocess.run(
            [sys.executable, JUMPING, str(clock), "-p", *words, *LAB],
            cwd=shell.cwd, env=shell.env, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    day_s = 86_400
    ask(day_s, "!echo one", "--session", "first")
    ask(day_s, "!echo two", "--session", "second")
    ask(0, "!echo three", "-c")  # The clock was wrong and is right now: the second is still the one used last.
    ask(0, "!echo four", "--session", "third")
    ask(0, "!echo five", "-c")
    ask(0, "!echo six", "--session", "first")
    ask(-day_s, "!echo seven", "-c")
    said = {name: [text for role, text in spoken(shell, name) if role == "assistant"] for name in ORDER}
    assert said == {"first": ["one", "six", "seven"], "second": ["two", "three"], "third": ["four", "five"]}
    assert [row["id"] for row in shell.told("list")] == ["first", "third", "second"]
