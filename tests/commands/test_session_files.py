"""`zot sessions rewind` and `diff`, as far as they are not about finding their words and flags."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import zot
from fakes import PATIENCE_S
from zot.commands.sessions_change import diff, rewind
from zot.commands.subcommands import CommandRequest
from zot.errors import NoSuchSession, RewindRefused, SessionBusy
from zot.journal.journal import Journal


def request_of(words: tuple[str, ...], settings: dict[str, Any], *, json: bool = True) -> CommandRequest:
    return CommandRequest(words, {**settings, "json": json})


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    journal = await Journal.open(tmp_path / "home" / "journal.db")
    yield journal
    await journal.close()


@pytest.fixture
def say(tmp_path: Path) -> Callable[..., Any]:
    async def say(*prompts: str, session: str = "s") -> None:
        settings: dict[str, Any] = {"cwd": str(tmp_path), "env": {"ZOT_HOME": str(tmp_path / "home")}}
        async with asyncio.timeout(PATIENCE_S), zot.Runtime(provider="lab", session=session, **settings) as runtime:
            for prompt in prompts:
                await runtime.run(prompt)

    return say


async def test_a_session_is_rewound_from_a_shell(
    say: Callable[..., Any], journal: Journal, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    await say("!write a.txt one", "!edit a.txt one two", "!write b.txt one")
    assert await rewind(journal, request_of(("s",), {"messages": 4, "dry_run": True}, json=False)) == 0
    assert capsysbinary.readouterr().out == (b"to be changed  a.txt\nto be removed  b.txt\n4 messages would be left\n")
    assert (tmp_path / "a.txt").read_bytes() == b"two"
    await rewind(journal, request_of(("s",), {"messages": 4}))
    answer = json.loads(capsysbinary.readouterr().out)
    undo = answer.pop("undo")
    assert answer == {
        "messages": 4,
        "files": [{"path": "a.txt", "change": "changed"}, {"path": "b.txt", "change": "removed"}],
    }
    assert (tmp_path / "a.txt").read_bytes() == b"one"
    assert not (tmp_path / "b.txt").exists()
    await rewind(journal, request_of(("s",), {"at": undo, "lock": True}, json=False))
    out = capsysbinary.readouterr().out.decode()
    assert out.startswith("changed  a.txt\ncreated  b.txt\n12 messages; --at ")
    assert (tmp_path / "a.txt").read_bytes() == b"two"
    (tmp_path / "b.txt").write_text("by hand")
    for dry_run in (True, False):
        with pytest.raises(RewindRefused, match=r"b\.txt: another program changed it"):
            await rewind(journal, request_of(("s",), {"messages": 4, "dry_run": dry_run}))
    await rewind(journal, request_of(("s",), {"messages": 4, "no_files": True}))
    assert json.loads(capsysbinary.readouterr().out)["files"] == []
    with pytest.raises(NoSuchSession):
        await rewind(journal, request_of(("t",), {"messages": 0}))


async def test_a_running_session_is_not_rewound_and_a_dead_one_is(
    say: Callable[..., Any], journal: Journal, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    await say("!write a.txt one")
    record = await journal.record("s")
    await record.begin()
    with pytest.raises(SessionBusy):
        await rewind(journal, request_of(("s",), {"messages": 0}))
    record.append([zot.events.UserMessage((), "2026-01-01T00:00:00.000Z")], run=record.last_run + 1)
    await record.settled()
    record.end()
    assert await rewind(journal, request_of(("s",), {"messages": 0})) == 0
    rows = [row for _, row in await record.read(record.last_seq - 1, 100)]
    assert [type(row).__name__ for row in rows] == ["UserMessage", "TurnEnd", "Done", "MessagesReplaced", "FileChanged"]
    assert json.loads(capsysbinary.readouterr().out)["messages"] == 0
    assert not (tmp_path / "a.txt").exists()


async def test_two_branches_are_compared_by_messages_and_files(
    say: Callable[..., Any], journal: Journal, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "bin").write_bytes(b"\0\1\2\3\xff")
    (tmp_path / "old.txt").write_text("a\n\tb\nc")
    await say("!write a.txt one")
    await journal.fork("s", "t", at=(await journal.record("s")).last_seq)
    await say("!edit old.txt b \x1b[31m", "!write bin text", "!write same.txt x", session="s")
    (tmp_path / "same.txt").unlink()
    await say("!edit a.txt one two", "!write same.txt x", session="t")
    assert await diff(journal, request_of(("s", "t"), {}, json=False)) == 0
    lines = capsysbinary.readouterr().out.decode().split("\n")
    assert lines[:4] == ["4 messages in common", "--- s", "+++ t", r"-user: !edit old.txt b \x1b[31m"]
    assert "+user: !edit a.txt one two" in lines
    assert lines[lines.index("--- a/a.txt") :] == [
        "--- a/a.txt", "+++ b/a.txt", "@@ -1 +1 @@",
        "-one", r"\ No newline at end of file", "+two", r"\ No newline at end of file",
        "Binary files a/bin and b/bin differ",
        "--- a/old.txt", "+++ b/old.txt", "@@ -1,3 +1,3 @@", " a", "-\t\\x1b[31m", "+\tb", " c",
        r"\ No newline at end of file", "",
    ]  # fmt: skip
    assert await diff(journal, request_of(("t", "s"), {})) == 0
    told = json.loads(capsysbinary.readouterr().out)
    assert (told["sessions"], told["shared"]) == (["t", "s"], 4)
    assert [len(messages) for messages in told["messages"]] == [8, 12]
    assert [file["path"] for file in told["files"]] == ["a.txt", "bin", "old.txt"]
    assert told["files"][0]["diff"].startswith("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-two\n")


async def test_new_missing_and_oversized_files_are_reported(
    say: Callable[..., Any], journal: Journal, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "large").write_bytes(b"x" * (8 * 1024 * 1024 + 1))
    await say("!echo hi")
    await journal.fork("s", "t", at=(await journal.record("s")).last_seq)
    await say("!write a.txt one", "!write large small", session="s")
    await diff(journal, request_of(("t", "s"), {}))
    told = json.loads(capsysbinary.readouterr().out)
    assert [file["diff"] for file in told["files"]] == [
        "--- /dev/null\n+++ b/a.txt\n@@ -0,0 +1 @@\n+one\n\\ No newline at end of file\n",
        "Files a/large and b/large may differ: the content was not kept\n",
    ]
    assert await diff(journal, request_of(("s", "s"), {})) == 0
    assert json.loads(capsysbinary.readouterr().out)["files"] == []
