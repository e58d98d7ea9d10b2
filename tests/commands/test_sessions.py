"""`zot sessions`: list, show and clean up recorded sessions."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness import PATIENCE_S
from shell import Shell
from zot.journal.chunks import Chunk
from zot.journal.lease import Leases, mark_damaged
from zot.journal.queries import put


def test_listing_an_absent_store_creates_nothing(shell: Shell) -> None:
    journal = shell.home / "journal.db"
    for argv in (("list",), ("search", "x"), ("gc",), ("check",)):
        assert shell.sessions(*argv) == ("", f"zot: no session has been recorded in {journal} yet\n", 0)
    told = f"zot: no session matches 'x': none has been recorded in {journal} yet\n"
    for name, *more in (("show",), ("export",), ("fork",), ("delete",), ("rename", "y")):
        assert shell.sessions(name, "x", *more) == ("", told, 1)
    assert not shell.home.exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "zot sessions needs a subcommand: list, show, search, export, import, move, fork, rewind, diff, rename, "
             "delete, gc, check, backup"),
        (("frob",), "zot sessions has no subcommand 'frob'; known: list, show, search, export, import, move, fork, "
                    "rewind, diff, rename, delete, gc, check, backup"),
        (("list", "x"), "zot sessions list takes no words"),
        (("show",), "zot sessions show takes ID"),
        (("show", ""), "zot sessions show takes ID"),
        (("list", "--frob"), "unknown flag --frob; --help-all lists every flag"),
        (("gc", "--older-than", "soon"),
         "--older-than soon: must be a number of hours, days or weeks, such as 12h, 30d or 4w"),
        (("gc", "--older-than", "99999999999999w"), "--older-than 99999999999999w: must be a century at most"),
        (("list", "--all", "--cwd", "x"), "--all and --cwd exclude each other"),
        (("fork", "a", "--messages", "1", "--at", "1"), "--messages and --at exclude each other"),
        (("rename", "a", " "), "a title must not be blank"),
    ],
)  # fmt: skip
def test_wrong_usage_is_exit_code_two(shell: Shell, argv: tuple[str, ...], message: str) -> None:
    shell.home.mkdir()
    (shell.home / "journal.db").touch()
    command = " ".join(["zot sessions", *argv[: argv[:1] != ("frob",)]])
    assert shell.sessions(*argv) == ("", f"zot: {message}. Try: {command} --help\n", 2)


@pytest.mark.parametrize("argv", [("--help",), ("-h",), ("list", "--help"), ("gc", "-h")])
def test_help_is_given(shell: Shell, argv: tuple[str, ...]) -> None:
    out, err, code = shell.sessions(*argv)
    assert (err, code) == ("", 0)
    assert out.startswith("Usage: zot sessions ")


def test_a_list_has_the_sessions_of_the_directory(shell: Shell) -> None:
    shell.ask("!echo one", "--session", "a")
    shell.ask("!echo two", "--session", "longer", cwd=shell.user)
    shell.ask("!echo three", "--session", "a")
    out, err, code = shell.sessions("list")
    assert (err, code) == ("zot: 1 of other directories: --all shows them\n", 0)
    [head, row] = [line.split("  ") for line in out.split("\n")[:-1]]
    assert (head[0], head[-1], row[0], row[-1]) == ("id", "title", "a", "!echo one")
    assert out.index("title") == out.index("!echo one") - len(out.split("\n")[0]) - 1
    out, err, code = shell.sessions("list", "--all")
    assert (err, code) == ("", 0)
    assert [line.split()[0] for line in out.split("\n")[:-1]] == ["id", "a", "longer"]
    assert [session["id"] for session in shell.told("list", "--cwd", "..")] == ["longer"]
    nothing = f"zot: no sessions of {shell.home}; 2 of other directories: --all shows them\n"
    assert shell.sessions("list", cwd=shell.home) == ("", nothing, 0)
    [told] = shell.told("list")
    assert {**told, "created": "", "updated": ""} == {
        "id": "a", "title": "!echo one", "cwd": str(shell.cwd), "created": "", "updated": "", "messages": 4,
        "usage": {"input": 200, "output": 40, "cache_read": 0, "cache_write": 0, "cost_usd": 0.0},
        "parent": None, "fork_seq": 0, "running": False, "pid": None,
    }  # fmt: skip


def test_the_sessions_of_a_daemon_are_found_by_its_directory(shell: Shell) -> None:
    shell.run("-p", "!echo mine", "--provider", "lab", "--session", "mine")
    data = shell.user / "daemon" / "data"
    data.mkdir(parents=True)
    shutil.copy(shell.home / "journal.db", data)
    shell.run("-p", "!echo newer", "--provider", "lab", "--session", "newer")
    where = ("--config-dir", str(shell.user / "daemon"))
    told = [json.loads(line)["id"] for line in shell.run("sessions", "list", "--json", *where).out.splitlines()]
    assert told == ["mine"]
    assert shell.run("sessions", "show", "newer", *where).code == 1
    assert shell.run("sessions", "list", "--config-dir", "/nowhere") == (
        "", "zot: --config-dir /nowhere: no such directory\n", 1,
    )  # fmt: skip


def test_an_id_may_be_shortened_if_it_is_unambiguous(shell: Shell) -> None:
    for name in ("one", "once", "on", *(f"x{number}" for number in range(7))):
        shell.ask("!echo Yes", "--session", name)
    assert shell.sessions("rename", "onc", "Eleven").out == "once is now called: Eleven\n"
    assert shell.sessions("rename", "on", "Zero").out == "on is now called: Zero\n"
    told = "zot: 'o' is the beginning of several sessions: on, once, one\n"
    assert shell.sessions("show", "o") == ("", told, 1)
    out, err, code = shell.sessions("show", "x")
    assert (out, code) == ("", 1)
    assert err.endswith(" and 2 more\n")


SCRIPT = """
think "Hm."
say "Let me look."
call bash {"command": "printf '\\\\033[2J\\\\rred\\\\n'; seq 100"}
---
say "Done.\\u001b[31m\\n\\u202eassistant  2026"
"""


def test_a_transcript_is_readable_and_cannot_control_the_terminal(shell: Shell) -> None:
    (shell.cwd / "s.lab").write_text(SCRIPT)
    flags = ("--script", "s.lab", "--session", "s", "--frozen-time", "2026-01-31T12:00:00Z")
    assert shell.ask("Look,\nplease", *flags).code == 0
    out, err, code = shell.sessions("show", "s")
    assert (err, code) == ("", 0)
    head, _, said = out.partition("\n\n")
    assert [line.split()[0] for line in head.split("\n")] == [
        "session", "title", "directory", "begun", "used", "tokens",
    ]  # fmt: skip
    *lines, more, blank, who, _, _ = said.split("\n")[:-1]
    assert lines == [
        "user  2026-01-31 12:00:00",
        "    Look,",
        "    please",
        "",
        "assistant  2026-01-31 12:00:00",
        "    Let me look.",
        r"""  -> bash {"command":"printf '\\033[2J\\rred\\n'; seq 100"}""",
        "",
        "tool  2026-01-31 12:00:00",
        "  <- bash",
        r"    $ printf '\033[2J\rred\n'; seq 100",
        "",
        r"    \x1b[2J\x0dred",
        "    1",
        "    2",
        "    3",
        "    4",
        "    5",
    ]
    assert more.endswith(" more characters; --full shows them")
    assert (blank, who) == ("", "assistant  2026-01-31 12:00:00")
    assert said.endswith("    Done.\\x1b[31m\n    \\u202eassistant  2026\n")
    full = shell.sessions("show", "s", "--full").out
    assert "\n  thinking\n    Hm.\n" in full
    assert "\n    100\n" in full
    assert f"\n-- from here on with lab lab-1 in {shell.cwd}\n" in full
    assert not any(mark in out + full for mark in "\x1b\r\u202e")


def test_a_transcript_for_programs_has_what_clients_see(shell: Shell) -> None:
    (shell.cwd / "s.lab").write_text('think "Hm."\nsay "Yes."')
    shell.ask("Well?", "--script", "s.lab", "--session", "s", "--frozen-time", "2026-01-31T12:00:00Z")
    head, user, reply = shell.told("show", "s")
    assert (head["type"], head["id"]) == ("session", "s")
    assert user == {
        "type": "message", "seq": 2, "role": "user", "content": [{"type": "text", "text": "Well?"}],
        "time": "2026-01-31T12:00:00.000Z",
    }  # fmt: skip
    assert reply["content"] == [{"type": "text", "text": "Yes."}]
    *_, reply = shell.told("show", "s", "--full")
    assert [block["type"] for block in reply["content"]] == ["thinking", "text"]


def test_failures_are_shown(shell: Shell) -> None:
    shell.ask("!status 401", "--session", "s")
    assert shell.sessions("show", "s").out.endswith("\n-- failed: lab: http 401: status 401, as scripted\n")


def test_matches_are_shown_with_their_context(shell: Shell) -> None:
    shell.ask("!echo Where is the needle in all this?", "--session", "a")
    shell.ask("!bash echo NEEDLE", "--session", "b")
    out, err, code = shell.sessions("search", "the", "needle")
    assert (err, code) == ("", 0)
    assert [" ".join(line.split()) for line in out.split("\n")[:-1]] == [
        "a row 2 user !echo Where is the needle in all this?",
        "a row 7 assistant Where is the needle in all this?",
    ]
    assert [(hit["session"], hit["role"]) for hit in shell.told("search", "needle", "--limit", "2")] == [
        ("b", "user"), ("b", "tool"),
    ]  # fmt: skip
    assert shell.sessions("search", "haystack") == ("", "zot: nowhere\n", 0)
    assert shell.sessions("search", "needle", "--limit", "1").err.startswith("zot: these are the first 1; to see more")


def test_a_fork_continues_independently(shell: Shell) -> None:
    for word in ("one", "two"):
        shell.ask(f"!echo {word}", "--session", "s")
    assert shell.sessions("fork", "s", "--as", "all") == ("all\n", "", 0)
    [made] = shell.told("fork", "s", "--messages", "2", "--as", "half")
    assert {**made, "fork_seq": 0} == {"id": "half", "parent": "s", "fork_seq": 0, "messages": 2}
    [_, _, reply, *_] = shell.told("show", "s")
    [by_row] = shell.told("fork", "s", "--at", str(reply["seq"]))
    assert by_row["fork_seq"] == made["fork_seq"] == reply["seq"] + 4
    assert shell.ask("!echo three", "--session", "half").out == "three\n"
    said = [row["content"][0]["text"] for row in shell.told("show", "half")[1:]]
    assert said == ["!echo one", "one", "!echo three", "three"]
    assert "\nforked     from s, after row " in shell.sessions("show", "half").out
    for argv, problem in (
        (("--as", "all"), "there is a session 'all' already"),
        (("--messages", "5"), "cannot fork at message 5: the conversation has 4"),
        (("--at", "999"), "session 's' has no row 999 to fork at"),
    ):
        assert shell.sessions("fork", "s", *argv) == ("", f"zot: {problem}\n", 1)


def test_nothing_is_removed_without_a_confirmation(shell: Shell) -> None:
    for name in ("a", "b", "c"):
        shell.ask("!echo Yes", "--session", name)
    out, err, code = shell.sessions("delete", "a", "b", "a")
    assert (out, code) == ("", 1)
    assert [line.split()[0] for line in err.split("\n")[:2]] == ["a", "b"]
    assert err.endswith("\nDelete these 2 sessions permanently? [y/N] \nzot: nothing was deleted\n")
    assert shell.sessions("delete", "a", typed=b"n\n").code == 1
    assert shell.sessions("delete", "a", "nope", "--yes").code == 1
    assert len(shell.told("list")) == 3
    assert shell.sessions("delete", "a", typed=b"y\n")[::2] == ("removed a\n", 0)
    assert shell.told("delete", "b", "--yes") == [{"deleted": "b"}]
    assert [session["id"] for session in shell.told("list")] == ["c"]


def test_old_sessions_are_removed_with_their_space(shell: Shell) -> None:
    shell.ask("!flood 20000", "--session", "old")
    shell.ask("!echo Yes", "--session", "new")
    with closing(sqlite3.connect(shell.home / "journal.db")) as connection, connection:
        connection.execute("UPDATE sessions SET updated = '2020-01-31T12:00:00.000Z' WHERE id = x'6f6c64'")
    out, err, code = shell.sessions("gc", "--older-than", "30d")
    assert (out, code) == ("", 1)
    assert err.startswith("old  2020-01-31 12:00  !flood 20000\nDelete this session permanently?")
    removed, collected = shell.told("gc", "--older-than", "4w", "--yes")
    assert removed == {"deleted": "old"}
    assert collected["images"] == 0
    assert collected["freed_bytes"] > 100_000
    assert [session["id"] for session in shell.told("list")] == ["new"]
    assert shell.sessions("gc").out.startswith("deleted 0 unused images; ")


def test_a_check_reports_problems_and_changes_nothing(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    assert shell.sessions("check") == ("1 session, 11 rows: everything is as it was written\n", "", 0)
    journal = shell.home / "journal.db"
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE chunks SET body = CAST(replace(body, 'Yes', 'No!') AS BLOB) WHERE kind = 0")
    before = journal.read_bytes()
    out, err, code = shell.sessions("check")
    told = f"zot: 4 problems in {journal}; the next session that is opened saves the readable part\n"
    assert (err, code) == (told, 1)
    assert out.split("\n")[0].startswith("session 's': ")
    assert json.loads(shell.sessions("check", "--json").out)["problems"] == out.split("\n")[:-1]
    assert journal.read_bytes() == before
    shell.ask("!echo No", "--session", "t")
    assert "since the repair of" in shell.sessions("check").out
    assert shell.sessions("check").code == 0
    journal.write_bytes(b"This is no journal at all. " * 1000)
    out, err, code = shell.sessions("check")
    assert (out, code) == ("the file: file is not a database\n", 1)
    assert journal.read_bytes().startswith(b"This is no journal")


def test_a_closed_output_is_not_an_error(shell: Shell) -> None:
    shell.ask("!flood 20000", "--session", "s")
    line = '"$0" -m zot sessions export s | head -n 1'
    done = subprocess.run(
        ["/bin/sh", "-c", line, sys.executable], cwd=shell.cwd, env=shell.env, capture_output=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert (done.stdout.count(b"\n"), done.stderr) == (1, b"")


def test_ids_and_titles_are_shown_escaped(shell: Shell) -> None:
    shell.ask("!echo \x1b[31mYes", "--session", "red\x1b[31m")
    out = shell.sessions("list").out
    assert "\x1b" not in out
    assert "red\\x1b[31m" in out
    name = os.fsdecode(b"caf\xe9")
    assert shell.ask("!echo Yes", "--session", name).code == 0
    assert "caf\\udce9" in shell.sessions("list").out
    assert name in [session["id"] for session in shell.told("list")]
    assert Path(shell.home, "journal.db").exists()


def test_a_rewind_without_a_target_is_wrong_usage(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    told = "zot: zot sessions rewind needs either --messages or --at. Try: zot sessions rewind --help\n"
    assert shell.sessions("rewind", "s") == ("", told, 2)
    assert shell.sessions("rewind", "s", "--messages", "1", "--at", "1") == ("", told, 2)


def test_other_damage_can_wait_until_the_file_is_no_longer_in_use(shell: Shell) -> None:
    for name in ("s", "damaged"):
        shell.ask("!echo Yes", "--session", name)
    journal = str(shell.home / "journal.db")
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("UPDATE chunks SET body = CAST(replace(body, 'Yes', 'No!') AS BLOB) WHERE session = 2")
    assert mark_damaged(journal)
    other = Leases(f"{journal}.lock")
    assert other.share()
    assert shell.ask("!echo two", "--session", "s") == ("two\n", "", 0)
    other.close()
    out, err, code = shell.ask("!echo three", "--session", "s")
    assert (out, code) == ("three\n", 0)
    assert err.startswith(f"{journal} was damaged; what could be read is in a new file")


def test_a_single_failed_read_is_not_taken_for_damage(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    journal = str(shell.home / "journal.db")
    assert mark_damaged(journal)
    told = "was found damaged; its checksums are correct, so a read must have failed: check the disk\n"
    assert shell.ask("!echo two", "--session", "s") == ("two\n", f"{journal} {told}", 0)
    assert shell.ask("!echo three", "--session", "s") == ("three\n", "", 0)
    assert not [*shell.home.glob("*.damaged-*")]


ACCEPT = "restore a backup, or accept the loss with: zot sessions check --acknowledge\n"


def test_a_lost_end_of_a_session_is_a_problem_until_it_is_acknowledged(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    journal = shell.home / "journal.db"
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("DELETE FROM chunks WHERE first > 6")
    told = f"zot: 1 problem in {shell.home}/journal.db; {ACCEPT}"
    assert shell.sessions("check") == ("session 's': rows 7 to 11 are missing\n", told, 1)
    assert shell.ask("!echo two", "--session", "s") == ("two\n", "session 's': rows 7 to 11 were lost\n", 0)
    assert shell.ask("!echo three", "--session", "s") == ("three\n", "", 0)
    for _ in range(2):
        out, err, code = shell.sessions("check")
        assert out.startswith("session 's': rows 7 to 11 were lost, noticed at 20")
        assert (err, code) == (told, 1)
    out, err, code = shell.sessions("check", "--acknowledge")
    assert (err, code) == ("zot: 1 problem acknowledged\n", 0)
    assert out.split("\n")[0].endswith("Z, and acknowledged")
    assert shell.sessions("check") == (out, "", 0)
    assert not [*shell.home.glob("*.damaged-*")]


def test_a_loss_is_acknowledged_before_the_session_is_opened(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    with closing(sqlite3.connect(shell.home / "journal.db")) as connection, connection:
        connection.execute("DELETE FROM chunks WHERE first > 6")
    assert shell.sessions("check", "--acknowledge").code == 0
    assert shell.sessions("check").code == 0
    assert shell.ask("!echo two", "--session", "s") == ("two\n", "", 0)


def test_a_missing_session_is_reported_and_no_other_is_blamed(shell: Shell) -> None:
    shell.ask("!echo One", "--session", "first")
    journal = shell.home / "journal.db"
    before = journal.read_bytes()
    shell.ask("!echo Two", "--session", "second")
    journal.write_bytes(before)  # what a copy of this file alone is, while another process has it open
    gone = "session number 2: all of it is missing, 11 rows\n"
    assert shell.sessions("check") == (gone, f"zot: 1 problem in {shell.home}/journal.db; {ACCEPT}", 1)
    told = f"{journal} lacks sessions that were recorded in it; run: zot sessions check\n"
    assert shell.ask("!echo Three", "--session", "third") == ("Three\n", told, 0)
    assert shell.ask("!echo Four", "--session", "fourth") == ("Four\n", "", 0)
    assert shell.sessions("check") == (gone, f"zot: 1 problem in {shell.home}/journal.db; {ACCEPT}", 1)
    verdict = "3 sessions, 33 rows: everything is as it was written\n"
    assert shell.sessions("check", "--acknowledge") == (verdict, "zot: 1 problem acknowledged\n", 0)
    assert shell.sessions("check") == (verdict, "", 0)


def test_a_session_that_was_deleted_is_not_missed(shell: Shell) -> None:
    for name in ("one", "two"):
        shell.ask("!echo Yes", "--session", name)
    shell.sessions("delete", "two", "--yes")
    assert shell.sessions("check") == ("1 session, 11 rows: everything is as it was written\n", "", 0)
    assert shell.ask("!echo Three", "--session", "three") == ("Three\n", "", 0)


@pytest.mark.parametrize("what", ["empty", "missing"])
def test_a_journal_of_which_nothing_is_left_is_reported(shell: Shell, what: str) -> None:
    shell.ask("!echo Yes", "--session", "s")
    journal = shell.home / "journal.db"
    if what == "empty":
        journal.write_bytes(b"")
    else:
        journal.unlink()
    told = f"the file: it is {what}, although sessions were recorded in it\n"
    assert shell.sessions("check") == (told, f"zot: 1 problem in {shell.home}/journal.db; {ACCEPT}", 1)
    out, _, code = shell.sessions("check", "--acknowledge")
    assert (out, code) == ("0 sessions, 0 rows: everything is as it was written\n", 0)


def test_rows_of_an_unknown_kind_are_never_taken_for_damage(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    journal = shell.home / "journal.db"
    with closing(sqlite3.connect(journal)) as connection, connection:
        put(connection, Chunk(1, 0, 12, 2, 2, b'{"type":"sung"}\n{"type":"danced"}\n'))
    for number in range(3):
        out, err, code = shell.sessions("check")
        assert "rows 12 to 13 cannot be understood, another zot wrote them" in out
        assert out.endswith("everything is as it was written\n")
        assert (err, code) == ("zot: this zot does not know some kinds of rows: update it to read those sessions\n", 0)
        assert shell.ask("!echo Yes", "--session", f"other {number}") == ("Yes\n", "", 0)
    assert not [*shell.home.glob("*.damaged-*")]


def test_a_backup_is_a_whole_journal_taken_while_sessions_are_written(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    with closing(sqlite3.connect(shell.home / "journal.db")) as connection:
        connection.execute("BEGIN IMMEDIATE")  # another connection holds the write lock
        connection.execute("UPDATE sessions SET title = 'half done'")
        out, err, code = shell.sessions("backup", "copy.db")
        connection.execute("ROLLBACK")
    copy = shell.cwd / "copy.db"
    assert (out, err, code) == ("", "zot: 1 session, 11 rows are in copy.db\n", 0)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in shell.cwd.iterdir()} == {"copy.db"}
    shell.ask("!echo No", "--session", "t")
    before = copy.read_bytes()
    told = "zot: copy.db exists, and a backup overwrites nothing: choose another name, or remove it\n"
    assert shell.sessions("backup", "copy.db") == ("", told, 1)
    assert copy.read_bytes() == before
    # Put in place of the journal, it lacks the rows written since.
    for file in shell.home.iterdir():
        file.unlink()
    copy.rename(shell.home / "journal.db")
    assert shell.sessions("check") == ("1 session, 11 rows: everything is as it was written\n", "", 0)
    assert shell.ask("!echo Again", "--session", "s") == ("Again\n", "", 0)


def test_a_backup_for_programs_names_its_file(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    assert shell.told("backup", "copy.db") == [{"file": "copy.db", "sessions": 1, "rows": 11}]


def test_an_impossible_backup_is_refused(shell: Shell) -> None:
    shell.ask("!echo Yes", "--session", "s")
    told = "zot: {}/nowhere: no file can be made there (No such file or directory): choose another place\n"
    assert shell.sessions("backup", "nowhere/copy.db") == ("", told.format(shell.cwd), 1)
    with closing(sqlite3.connect(shell.home / "journal.db")) as connection, connection:
        connection.execute("UPDATE chunks SET body = CAST(replace(body, 'Yes', 'No!') AS BLOB) WHERE kind = 0")
    journal = shell.home / "journal.db"
    advice = (
        "so it was not copied: zot sessions check names all damage, the next session that is opened saves the readable"
        " part, then back up again\n"
    )
    out, err, code = shell.sessions("backup", "copy.db")
    assert (out, code) == ("", 1)
    assert err.startswith(f"zot: {journal} is damaged (session 's': row")
    assert err.endswith(advice)
    data = journal.read_bytes()
    damaged = data.replace(b"CREATE TABLE chunks", b"CREATE TRASH chunks")
    unnamed = damaged.replace(b"chunkschunks", b"\xff" * 12)
    for damage, named in ((damaged, "malformed database schema (chunks)"), (unnamed, "not even the error is text")):
        journal.write_bytes(damage)
        out, err, code = shell.sessions("backup", "copy.db")
        assert (out, code) == ("", 1)
        assert err.startswith(f"zot: {journal} is damaged (the file: ")
        assert named in err
        assert err.endswith(advice)
        assert shell.sessions("check").code == 1
    assert [*shell.cwd.iterdir()] == []


def test_a_backup_names_damage_that_sqlite_reports_as_something_else(shell: Shell) -> None:
    for name in ("one", "two"):
        shell.ask("!echo Yes", "--session", name)
    journal = shell.home / "journal.db"
    journal.write_bytes(journal.read_bytes().replace(b"two", b"one"))  # Ids are unique.
    out, err, code = shell.sessions("backup", "copy.db")
    assert (out, code) == ("", 1)
    assert f"zot: {journal} is damaged (the file: " in err


def test_sessions_can_be_read_on_a_full_disk(shell: Shell) -> None:
    """If no other process has the journal open, SQLite needs a shared-memory file, for which there is no room."""
    shell.ask("!echo Hello there", "--session", "s")
    journal = shell.home / "journal.db"
    with no_file_grows():
        [listed] = shell.told("list")
        assert (listed["id"], listed["messages"]) == ("s", 2)
        assert "Hello there" in shell.sessions("show", "s").out
        assert "Hello there" in shell.sessions("search", "hello").out
        assert "Hello there" in shell.sessions("export", "s").out
        assert shell.sessions("check") == ("1 session, 11 rows: everything is as it was written\n", "", 0)
        out, err, code = shell.sessions("rename", "s", "new")
        assert (out, code) == ("", 1)
        assert err.startswith(f"zot: the disk is full: nothing more can be recorded in {journal}; ")
    assert shell.sessions("rename", "s", "new").code == 0


@contextmanager
def no_file_grows() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("what", ["empty", "missing"])
def test_a_journal_of_which_nothing_is_left_is_neither_copied_nor_taken_for_a_new_one(shell: Shell, what: str) -> None:
    shell.ask("!echo Yes", "--session", "s")
    journal = shell.home / "journal.db"
    if what == "empty":
        journal.write_bytes(b"")
        told = f"zot: {journal} has lost all its sessions, so it was not copied; run: zot sessions check\n"
    else:
        journal.unlink()
        told = f"zot: {journal} is missing, although sessions were recorded in it; run: zot sessions check\n"
        assert shell.sessions("list") == ("", told, 1)
        assert shell.sessions("show", "s") == ("", told, 1)
    assert shell.sessions("backup", "copy.db") == ("", told, 1)
    assert [*shell.cwd.iterdir()] == []


def test_permanent_loss_does_not_prevent_a_backup_of_the_rest(shell: Shell) -> None:
    shell.ask("!echo One", "--session", "first")
    journal = shell.home / "journal.db"
    before = journal.read_bytes()
    shell.ask("!echo Two", "--session", "second")
    journal.write_bytes(before)
    lacks = f"zot: {journal} lacks sessions that were recorded in it, and so does the backup; run: zot sessions check\n"
    told = "zot: 1 session, 11 rows are in one.db\n"
    assert shell.sessions("backup", "one.db") == ("", told + lacks, 0)
    with closing(sqlite3.connect(journal)) as connection, connection:
        connection.execute("DELETE FROM chunks WHERE first > 6")
    shell.ask("!echo Three", "--session", "first")  # Which records that rows were lost.
    out, err, code = shell.sessions("backup", "two.db")
    assert (out, err.endswith(f" are in two.db\n{lacks}"), code) == ("", True, 0)
    assert shell.sessions("check", "--acknowledge").code == 0
    assert shell.sessions("backup", "three.db").err.endswith(" are in three.db\n")


def test_a_journal_that_could_not_be_begun_on_a_full_disk_has_no_sessions(shell: Shell) -> None:
    shell.home.mkdir(mode=0o700)
    (shell.home / "journal.db").touch(mode=0o600)
    with no_file_grows():
        assert shell.sessions("list") == ("", "zot: there are no sessions\n", 0)
        assert shell.sessions("search", "x").code == 0
        assert shell.sessions("show", "x").err.startswith("zot: no session matches 'x'")
    assert shell.ask("!echo Yes", "--session", "s") == ("Yes\n", "", 0)
