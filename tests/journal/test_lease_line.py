"""The line of waiters for a session's lease: in order of arrival, across processes, without dead ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PATIENCE_S, environment
from zot.errors import StoreFailed
from zot.journal.lease import Ticket

#: Takes a place and stays until its input ends; with another argument a child does, and the parent dies at once.
HOLD = """
import os, sys
from zot.journal.lease import Ticket
ticket = Ticket(sys.argv[1], 7, 1.0)
if len(sys.argv) > 2 and os.fork():
    os.kill(os.getpid(), 9)
print("in", end="", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "journal.db.lock"
    path.touch()
    return str(path)


def test_the_first_in_line_stays_first_until_it_leaves(file: str) -> None:
    third, first, second = (Ticket(file, 7, came) for came in (2.5, 0.0, 0.0))
    assert [ticket.is_first for ticket in (first, second, third)] == [True, False, False]
    second.leave()
    assert [ticket.is_first for ticket in (first, third)] == [True, False]
    first.leave()
    fourth = Ticket(file, 7, 2.502)
    assert [ticket.is_first for ticket in (third, fourth)] == [True, False]
    for ticket in (third, fourth, fourth):
        ticket.leave()
    assert Ticket(file, 7, 3.0).is_first is True


def test_every_session_has_its_own_line(file: str) -> None:
    tickets = [Ticket(file, number, 1.0) for number in (6, 7, 8)]
    assert [ticket.is_first for ticket in tickets] == [True, True, True]


def test_a_process_that_dies_leaves_the_line(file: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment({})
    )
    assert process.stdout is not None
    assert process.stdout.read(2) == b"in"
    ticket = Ticket(file, 7, 2.0)
    assert ticket.is_first is False
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert ticket.is_first is True


def test_a_child_that_was_forked_does_not_keep_our_place(file: str) -> None:
    ticket = Ticket(file, 7, 1.0)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    ticket.leave()
    is_first = Ticket(file, 7, 2.0).is_first
    os.close(writing)
    os.waitpid(child, 0)
    assert is_first is True


def test_a_forked_child_does_not_keep_the_place_of_a_killed_parent(file: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, file, "fork"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment({}),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.read(2) == b"in"
    process.wait(PATIENCE_S)
    is_first = Ticket(file, 7, 2.0).is_first
    process.communicate(timeout=PATIENCE_S)
    assert is_first is True


def test_a_missing_lock_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=r"cannot be locked \(No such file"):
        Ticket(str(tmp_path / "nothing"), 7, 1.0)
