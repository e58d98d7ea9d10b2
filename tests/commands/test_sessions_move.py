"""Sessions as files: out of one journal and into another, all of it or nothing."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from forked import ForkServer
from harness import PATIENCE_S, Zot, eventually, resident_bytes
from shell import Shell

IMAGE = base64.b64encode(b"not really a picture" * 100).decode()


@pytest.fixture
def other(tmp_path: Path, fork_server: ForkServer) -> Shell:
    """Another user's shell, on another machine."""
    directory = tmp_path / "other"
    directory.mkdir()
    return Shell(directory, fork_server)


def fill(shell: Shell, zot: Callable[..., Zot]) -> None:
    """Make a session with images, thinking, tools, a failure and a compaction."""
    process = zot("--provider", "lab", "--session", "s", env=shell.env, cwd=shell.cwd)
    process.send(
        {"type": "prompt", "message": "!echo A picture.", "images": [{"mime_type": "image/png", "data": IMAGE}]},
        {"type": "prompt", "message": "!echo Again.", "images": [{"mime_type": "image/png", "data": IMAGE}]},
        {"type": "prompt", "message": "!think"},
        {"type": "prompt", "message": "!tools"},
        {"type": "prompt", "message": "!status 401"},
        {"type": "compact"},
        {"type": "prompt", "message": "!echo \u00fcber \U0001f600"},
    )
    process.finish()


def test_an_exported_and_imported_session_is_the_same(shell: Shell, other: Shell, zot: Callable[..., Zot]) -> None:
    fill(shell, zot)
    exported = shell.sessions("export", "s")
    assert (exported.err, exported.code) == ("", 0)
    assert other.sessions("import", "-", typed=exported.out.encode()) == ("s\n", "", 0)
    assert other.sessions("export", "s") == exported
    assert other.sessions("check").code == 0
    assert other.sessions("show", "s", "--full").out.count("[image/png, 2.0 kB]") == 2
    mine, theirs = shell.told("show", "s", "--full"), other.told("show", "s", "--full")
    assert [row for row in theirs[1:] if row["type"] != "configured"] == [
        row for row in mine[1:] if row["type"] != "configured"
    ]
    same = ("id", "title", "created", "messages", "usage", "parent")
    assert [theirs[0][name] for name in same] == [mine[0][name] for name in same]
    assert other.ask("!echo On we go.", "-r", "s").out == "On we go.\n"
    assert other.sessions("export", "s").out.startswith(exported.out.rpartition('{"type":"end"')[0])


def test_a_file_says_nothing_about_the_machine(shell: Shell, other: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    shell.ask("!echo Yes", "--session", "t", cwd="/")
    text = shell.sessions("export", "s").out + shell.sessions("export", "t").out
    assert str(shell.user) not in text
    head, configured, *_ = (json.loads(line) for line in text.split("\n")[:-1])
    assert (head["type"], head["version"], head["cwd"]) == ("zot_session", 1, "~/project")
    assert configured["change"] == {
        "type": "configured", "provider": "lab", "model": "lab-1", "system": "", "reasoning": "off", "cwd": "~/project",
    }  # fmt: skip
    other.sessions("import", "-", typed=shell.sessions("export", "s").out.encode())
    [told] = other.told("list", "--all")
    assert told["cwd"] == str(other.cwd)
    assert other.run("-p", "!bash pwd", "-r", "s").code == 0
    assert f"\n    {other.cwd}\n" in other.sessions("show", "s").out


def test_the_import_directory_can_be_given(shell: Shell, other: Shell) -> None:
    shell.ask("!echo Yes", "--session", "t", cwd="/")
    file = str(shell.user / "t.jsonl")
    assert shell.sessions("export", "t", "-o", file) == ("", f"zot: exported t to {file}\n", 0)
    assert os.stat(file).st_mode & 0o777 == 0o600
    assert shell.sessions("export", "t", "-o", file) == ("", f"zot: {file}: File exists\n", 1)
    assert other.sessions("import", file, "--cwd", ".") == ("t\n", "", 0)
    assert other.ask("!echo Here.", "-c").out == "Here.\n"
    assert len(other.told("show", "t")) == 5
    assert other.sessions("export", "t").out.split("\n")[0].endswith('"cwd":"~/project","parent":null,"fork_seq":0}')


def test_a_session_without_a_directory_works_where_it_is_continued(shell: Shell, other: Shell) -> None:
    shell.ask("!echo Yes", "--session", "t", cwd="/")
    other.sessions("import", "-", typed=shell.sessions("export", "t").out.encode())
    assert other.ask("!echo Here.", "--resume", "t") == ("Here.\n", "", 0)
    assert [session["cwd"] for session in other.told("list")] == [str(other.cwd)]


def test_an_id_in_use_is_not_overwritten(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    (shell.cwd / "s.jsonl").write_text(shell.sessions("export", "s").out)
    out, err, code = shell.sessions("import", "s.jsonl")
    assert (err, code) == ("zot: session 's' exists already, so the imported one has a new id\n", 0)
    assert shell.sessions("export", out.strip()).out.replace(out.strip(), "s") == (shell.cwd / "s.jsonl").read_text()
    assert shell.told("import", "s.jsonl", "--as", "t") == [{"id": "t", "was": "s", "messages": 2}]
    assert shell.sessions("import", "s.jsonl", "--as", "t") == ("", "zot: there is a session 't' already\n", 1)
    assert {session["id"] for session in shell.told("list")} == {"s", "t", out.strip()}


def test_a_wrong_file_is_refused_with_its_line_and_leaves_no_trace(shell: Shell, other: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    lines = shell.sessions("export", "s").out.encode().split(b"\n")[:-1]
    for wrong, problem in (
        (lines[:-1], "line 13: the file ends here, but the session does not: it is incomplete"),
        ([*lines[:5], b"", *lines[5:]], "line 6: the JSON ends too early"),
        ([*lines[:3], b'{"type":"\\u001b[2J"}', *lines[4:]], "line 4: type cannot be '\\x1b[2J'"),
        ([*lines[:3], b" " * (65 << 20), *lines[3:]], "line 4: it has more than 64 MiB"),
    ):
        told = ("", f"zot: -, {problem}\n", 1)
        assert other.sessions("import", "-", typed=b"\n".join(wrong)) == told
    assert other.sessions("list", "--all") == ("", "zot: there are no sessions\n", 0)
    assert other.sessions("check").out == "0 sessions, 0 rows: everything is as it was written\n"
    assert other.sessions("import", "nowhere") == ("", "zot: nowhere: No such file or directory\n", 1)


def test_a_session_is_moved_in_little_memory_however_long_it_is(shell: Shell, other: Shell) -> None:
    """The rows take some 40 MB, so holding all of them in memory would show."""
    shell.ask("!echo Yes", "--session", "s")
    head, *_ = shell.sessions("export", "s").out.encode().split(b"\n")[:-1]
    delta = b'{"type":"event","seq":%d,"run":1,"event":{"type":"text_delta","delta":"%s"}}\n'
    file = other.user / "long.jsonl"
    count = 40_000
    with file.open("wb") as out:
        out.write(head + b"\n")
        out.writelines(delta % (number, b"x" * 1000) for number in range(1, count + 1))
        out.write(b'{"type":"end","rows":%d}\n' % count)
    assert peak_of(other, "sessions", "import", str(file)) < 60 << 20
    process = other.start("sessions", "export", "s")
    assert process.stdout is not None
    with process.stdout:
        first = process.stdout.read(1 << 20)
        held = resident_bytes(process.pid)
        rest = process.stdout.read()
    assert first + rest == file.read_bytes()
    assert process.wait(PATIENCE_S) == 0
    assert held < 60 << 20
    assert process.stderr is not None
    process.stderr.close()


def peak_of(shell: Shell, *argv: str) -> int:
    """Return about how much memory a command held at most."""
    process = shell.start(*argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0

    def is_over() -> bool:
        nonlocal peak
        is_over = process.poll() is not None
        peak = max(peak, 0 if is_over else resident_bytes(process.pid))
        return is_over

    assert eventually(is_over)
    assert process.returncode == 0
    return peak
