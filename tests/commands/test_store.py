"""Commands with --store: the sessions are in PostgreSQL, and everything else is as with a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness import environment
from shell import Shell

LAB = ("--provider", "lab")


def test_a_conversation_continues_wherever_the_database_is(shell: Shell, database: str) -> None:
    lines = b'{"type":"prompt","id":"1","message":"!echo one"}\n'
    first = shell.run("rpc", *LAB, "--session", "talk", "--store", database, typed=lines)
    assert json.loads(first.out.split("\n")[-2]) == {"type": "done"}, first.err
    shell.env["ZOT_STORE"] = database
    assert shell.run("-p", "!echo two", *LAB, "--continue").out == "two\n"
    listed = shell.run("sessions", "list", "--json")
    [session] = [json.loads(line) for line in listed.out.split("\n") if line]
    assert (session["id"], session["messages"], session["running"]) == ("talk", 4, False)
    assert "!echo two" in shell.run("sessions", "show", "talk").out
    assert "talk" in shell.run("sessions", "search", "TWO").out
    assert not (shell.home / "journal.db").exists()
    # The address of the database is a secret of ours.
    assert shell.run("-p", "!env", *LAB, "--session", "env").out.count("ZOT_STORE") == 0


def test_a_prompt_fails_if_the_store_that_it_names_cannot_be_used(shell: Shell) -> None:
    (shell.cwd / "file").touch()
    said = shell.run("-p", "!echo hi", *LAB, "--store", "file/journal.db")
    assert (said.out, said.code) == ("", 1)
    assert "file/journal.db" in said.err


def test_a_host_answers_once_for_each_key(shell: Shell, database: str) -> None:
    request = {
        "request_id": "r1", "session_id": "chat", "prompt": "!echo once | tee -a said", "agent": "default",
        "metadata": {"idempotency_key": "k"},
    }  # fmt: skip
    line = json.dumps(request).encode() + b"\n"
    answers = [json.loads(shell.run("host", *LAB, "--store", database, typed=line).out) for _ in range(2)]
    assert [answer["ok"] for answer in answers] == [True, True], answers
    assert answers[0]["text"] == answers[1]["text"]
    assert shell.run("sessions", "list", "--all", "--store", database).out.count("host:chat") == 1


def test_a_session_moves_between_stores_row_by_row(shell: Shell, database: str) -> None:
    shell.run("-p", "!echo one > file", *LAB, "--session", "talk", "--policy", "bash=allow")
    before = shell.run("sessions", "export", "talk").out
    moved = shell.run("sessions", "move", "talk", "--to", database)
    assert (moved.code, "talk is in postgresql://" in moved.err) == (0, True), moved.err
    assert shell.run("sessions", "show", "talk").code == 1
    assert shell.run("sessions", "export", "talk", "--store", database).out == before
    assert shell.run("-p", "!echo two", *LAB, "--session", "talk", "--store", database).out == "two\n"
    again = shell.run("sessions", "move", "talk", "--store", database, "--to", database)
    assert "there already" in again.err
    copied = shell.run("sessions", "move", "talk", "--store", database, "--to", "copy.db", "--copy")
    assert copied.code == 0, copied.err
    texts = [shell.run("sessions", "export", "talk", "--store", one).out for one in ("copy.db", database)]
    assert texts[0] == texts[1]
    assert len(texts[0]) > len(before)
    twice = shell.run("sessions", "move", "talk", "--store", database, "--to", "copy.db")
    assert "there is a session 'talk' already" in twice.err


def test_commands_for_files_are_refused_for_a_database(shell: Shell, database: str) -> None:
    assert "use pg_amcheck" in shell.run("sessions", "check", "--store", database).err
    assert "use pg_dump" in shell.run("sessions", "backup", "copy.db", "--store", database).err
    assert "begins with postgresql://" in shell.run("sessions", "list", "--store", "mysql://x").err


def test_the_state_of_a_fleet_is_shown(shell: Shell, database: str) -> None:
    shell.run("-p", "!echo one", *LAB, "--session", "talk", "--store", database)
    said = shell.run("fleet", "status", "--store", database)
    assert "sessions   1; 0 run, 0 wait to be taken over\n" in said.out, said.err
    assert json.loads(shell.run("fleet", "status", "--json", "--store", database).out)["sessions"] == 1
    assert "zot fleet needs a database: add --store postgresql://" in shell.run("fleet", "status").err


def test_nothing_of_it_is_imported_without_a_database(tmp_path: Path) -> None:
    program = (
        "import sys, asyncio\n"
        "from zot.journal.opening import open_journal\n"
        "async def main():\n"
        "    journal = await open_journal(sys.argv[1])\n"
        "    await journal.record('a')\n"
        "    await journal.close()\n"
        "asyncio.run(main())\n"
        "print([name for name in sys.modules if 'psycopg' in name or 'procrastinate' in name or 'postgres' in name])\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "journal.db")]
    assert subprocess.run(words, env=environment({}), capture_output=True, check=True).stdout == b"[]\n"
