"""One writer a session, across processes; a dead one holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from harness import PATIENCE_S
from zot.errors import StoreFailed
from zot.journal import lease
from zot.journal.lease import Leases

#: Takes the sessions that its input names, and says whether it could; or forks a child that stays until the input ends.
HOLDER = """
import os, sys
from zot.journal.lease import Leases
leases = Leases(sys.argv[1])
leases.share()
for line in sys.stdin:
    if line != "fork\\n":
        print(leases.acquire(int(line)), flush=True)
    elif os.fork() == 0:
        print("forked", flush=True)
        os.read(0, 1)
        os._exit(0)
"""


class Holder:
    """Another process."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def acquire(self, number: int) -> bool:
        return self._ask(f"{number}") == "True"

    def fork(self) -> None:
        assert self._ask("fork") == "forked"

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return next(self.process.stdout).rstrip("\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


@contextmanager
def holding(path: Path) -> Iterator[Holder]:
    holder = Holder(path)
    with holder.process:
        yield holder
        holder.kill()


@pytest.fixture(params=["locks of the open file", "locks of the process"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the lock file, with either kind of lock in this process; the two kinds exclude each other, too."""
    if request.param == "locks of the process":
        monkeypatch.setattr(lease, "_SET", None)
    return tmp_path / "lock"


def test_a_session_has_one_writer_in_a_process(path: Path) -> None:
    with closing(Leases(str(path))) as leases:
        assert [leases.acquire(1), leases.acquire(2), leases.acquire(1)] == [True, True, False]
        leases.release(1)
        assert [leases.acquire(1), sorted(leases.held)] == [True, [1, 2]]


def test_releasing_a_lease_that_is_not_held_affects_no_holder(path: Path) -> None:
    with holding(path) as holder, closing(Leases(str(path))) as leases:
        assert holder.acquire(1)
        leases.release(1)
        assert not leases.acquire(1)


def test_a_session_has_one_writer_among_processes(path: Path) -> None:
    with holding(path) as holder, closing(Leases(str(path))) as leases:
        assert holder.acquire(1)
        assert [leases.acquire(1), leases.acquire(2)] == [False, True]
        assert not holder.acquire(2)
        leases.release(2)
        assert holder.acquire(2)


def test_a_killed_process_holds_nothing(path: Path) -> None:
    with holding(path) as holder, closing(Leases(str(path))) as leases:
        assert holder.acquire(7)
        assert not leases.acquire(7)
        holder.kill()
        assert leases.acquire(7)


def test_a_child_of_the_writer_does_not_keep_its_lease(path: Path) -> None:
    leases = Leases(str(path))
    assert leases.acquire(1)
    with subprocess.Popen(["cat"], close_fds=False, stdin=subprocess.PIPE) as started:
        leases.close()
        with closing(Leases(str(path))) as others:
            assert others.acquire(1)
        started.kill()


def test_a_forked_child_does_not_keep_its_lease_either(path: Path) -> None:
    leases = Leases(str(path))
    assert leases.acquire(1)
    go, let_go = os.pipe()
    there, is_there = os.pipe()
    forked = os.fork()
    if forked == 0:
        os.close(let_go)
        os.write(is_there, b".")
        os.read(go, 1)
        os._exit(0)
    assert os.read(there, 1) == b"."
    leases.close()
    with closing(Leases(str(path))) as others:
        assert others.acquire(1)
    for descriptor in (let_go, go, there, is_there):
        os.close(descriptor)
    assert os.waitpid(forked, 0) == (forked, 0)


def test_a_forked_child_does_not_keep_the_lease_of_a_killed_parent(path: Path) -> None:
    with holding(path) as holder, closing(Leases(str(path))) as leases:
        assert holder.acquire(1)
        holder.fork()
        assert not leases.acquire(1)
        holder.kill()
        assert leases.acquire(1)


def test_replacing_the_journal_is_exclusive(path: Path) -> None:
    with closing(Leases(str(path))) as leases:
        with holding(path) as holder:
            assert holder.acquire(1)
            assert leases.share()
            assert not leases.own()
        assert leases.own()
        with holding(path) as holder:
            # It was told to share and could not; sessions are another matter.
            assert holder.acquire(1)
            assert leases.share()


def test_a_thousand_sessions_need_one_descriptor(path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with closing(Leases(str(path))) as leases:
        assert all(leases.acquire(number) for number in range(1, 1001))
        if before:
            assert len(os.listdir("/proc/self/fd")) == before + 1


def test_a_removed_lock_file_is_noticed(path: Path) -> None:
    with closing(Leases(str(path))) as leases:
        path.unlink()
        assert leases.acquire(1)
        with holding(path) as holder:
            assert not holder.acquire(1)
            path.unlink()
            with pytest.raises(StoreFailed, match="was removed while a session runs"):
                leases.acquire(2)


def test_the_committed_position_is_remembered(path: Path) -> None:
    with closing(Leases(str(path))) as leases:
        assert (leases.marked(1), leases.marked(900)) == (0, 0)
        leases.mark({900: 1 << 40})
        leases.mark({1: 5})
        leases.mark({4: 14, 3: 13, 9: 19, 8: 18, 6: 16})
    with closing(Leases(str(path))) as leases:
        assert [leases.marked(number) for number in range(11)] == [0, 5, 0, 13, 14, 0, 16, 0, 18, 19, 0]
        assert [leases.marked(number) for number in (899, 900, 901)] == [0, 1 << 40, 0]


def test_the_lock_file_is_private(path: Path) -> None:
    with closing(Leases(str(path))):
        assert path.stat().st_mode & 0o777 == 0o600


def test_the_owner_can_use_a_lock_file_that_was_made_under_a_strict_umask(path: Path) -> None:
    before = os.umask(0o777)
    try:
        with closing(Leases(str(path))):
            assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


def test_an_impossible_lock_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed, match=r"cannot be opened \(No such file or directory\): check"):
        Leases(str(tmp_path / "nowhere" / "lock"))
