"""Ownership of an endpoint: one process at a time, after crashes, leftovers and attacks."""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from child_process import NOBODY, Child
from zot.client.endpoint import owner
from zot.errors import ConfigError, DaemonRunning
from zot.serve.daemon.claim import Claim, adopt_listener, claim_endpoint


@pytest.fixture
def place() -> Iterator[Path]:
    """A short path in a directory that everybody may pass."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    try:
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def fill_backlog(path: Path) -> list[socket.socket]:
    """Connect until connections are refused."""
    waiting = []
    with suppress(BlockingIOError):
        while True:
            waiting.append(connect(path))
    return waiting


def held(path: Path, *, at_once: bool = True) -> Callable[[Callable[[], None]], str]:
    """Return the code of a child that owns the endpoint until it dies, and reports that it does."""

    def own(wait: Callable[[], None]) -> str:
        if not at_once:
            wait()
        owned.append(claim_endpoint(str(path)))
        return "mine"

    owned: list[Claim] = []
    return own


def test_the_owner_can_use_a_lock_file_that_was_made_under_a_strict_umask(place: Path) -> None:
    before = os.umask(0o777)
    try:
        claim_endpoint(str(place / "d.sock")).release()
    finally:
        os.umask(before)
    assert mode(place / "d.sock.lock") == 0o600


def test_the_socket_is_private_under_any_umask(place: Path) -> None:
    before = os.umask(0)
    try:
        claim = claim_endpoint(str(place / "new" / "deep" / "d.sock"))
        assert os.umask(0) == 0, "the umask is put back"
    finally:
        os.umask(before)
    assert [mode(place / "new"), mode(place / "new/deep")] == [0o700, 0o700]
    assert [mode(place / "new/deep/d.sock"), mode(place / "new/deep/d.sock.lock")] == [0o600, 0o600]
    assert mode(place) == 0o755, "a directory that we did not make stays as it is"
    with connect(place / "new/deep/d.sock") as client:
        served, _ = claim.listener.accept()
        served.sendall(b"hello")
        assert client.recv(5) == b"hello"
        served.close()
    claim.release()
    assert sorted(os.listdir(place / "new/deep")) == ["d.sock.lock"]


def test_a_living_owner_is_named_and_kept(place: Path) -> None:
    path = place / "d.sock"
    with Child(held(path)) as first:
        assert first.report() == "mine"
        assert owner(str(path)) == first.pid
        with pytest.raises(
            DaemonRunning, match=f"process {first.pid} is the daemon at {path}: .*zot daemon stop"
        ) as it:
            claim_endpoint(str(path))
        assert it.value.pid == first.pid
        connect(path).close()
    assert owner(str(path)) is None


def test_the_owner_may_be_this_process(place: Path) -> None:
    claim = claim_endpoint(str(place / "d.sock"))
    with pytest.raises(DaemonRunning) as problem:
        claim_endpoint(str(place / "d.sock"))
    assert problem.value.pid == os.getpid()
    claim.release()
    claim.release()
    claim_endpoint(str(place / "d.sock")).release()


def test_leftovers_of_a_killed_daemon_are_replaced(place: Path) -> None:
    path = place / "d.sock"
    with Child(held(path)) as first:
        assert first.report() == "mine"
        left = os.lstat(path).st_ino
        first.kill()
    assert stat.S_ISSOCK(os.lstat(path).st_mode)
    keep = os.open(path, os.O_PATH)  # so that its number is not used again
    claim = claim_endpoint(str(path))
    assert os.lstat(path).st_ino != left
    connect(path).close()
    os.close(keep)
    claim.release()


def test_a_forked_child_does_not_keep_the_endpoint_of_a_dead_daemon(place: Path) -> None:
    path = place / "d.sock"
    waits, ends = os.pipe()

    def own_and_fork(_: Callable[[], None]) -> str:
        owned.append(claim_endpoint(str(path)))
        if os.fork() == 0:
            os.close(ends)
            os.read(waits, 1)  # It ends with the test.
            os._exit(0)
        return "mine"

    owned: list[Claim] = []
    with Child(own_and_fork) as first:
        assert first.report() == "mine"
        first.kill()
    claim_endpoint(str(path)).release()
    os.close(ends)
    os.close(waits)


def test_exactly_one_of_two_racing_daemons_wins(place: Path) -> None:
    for number in range(20):
        path = place / f"{number}.sock"
        if number % 2:  # Half of them race for what a dead one left.
            left = socket.socket(socket.AF_UNIX)
            left.bind(str(path))
            left.close()
        with Child(held(path, at_once=False)) as one, Child(held(path, at_once=False)) as other:
            one.resume()
            other.resume()
            said = sorted([one.report(), other.report()])
            assert said[1] == "mine"
            assert said[0].startswith("DaemonRunning: process ")
            connect(path).close()


def test_inspecting_the_owner_does_not_prevent_a_claim(place: Path) -> None:
    path = place / "d.sock"
    claim_endpoint(str(path)).release()

    def look(_: Callable[[], None]) -> str:
        while True:
            owner(str(path))

    with Child(look):
        for _ in range(100):
            claim_endpoint(str(path)).release()


def test_a_listener_without_the_lock_is_not_replaced(place: Path) -> None:
    path = place / "d.sock"
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen(0)
        with pytest.raises(DaemonRunning) as problem:
            claim_endpoint(str(path))
        assert problem.value.pid == os.getpid()
        waiting = fill_backlog(path)
        with pytest.raises(DaemonRunning, match="another process"):
            claim_endpoint(str(path))
        for connection in waiting:
            connection.close()
        connect_again = foreign.accept()[0]
        connect_again.close()
    assert owner(str(path)) is None


# Other files at the socket's path.


def a_file(path: Path) -> None:
    path.write_text("precious")


def a_directory(path: Path) -> None:
    path.mkdir()


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def a_link_to_a_file(path: Path) -> None:
    (path.parent / "precious").write_text("precious")
    path.symlink_to(path.parent / "precious")


@pytest.mark.parametrize("make", [a_file, a_directory, a_fifo, a_link_to_nothing, a_link_to_a_file])
def test_a_file_that_is_not_a_socket_is_never_removed(place: Path, make: Callable[[Path], None]) -> None:
    path = place / "d.sock"
    make(path)
    before = os.lstat(path)
    with pytest.raises(ConfigError, match="exists and is not a socket"):
        claim_endpoint(str(path))
    assert os.path.samestat(os.lstat(path), before)
    assert owner(str(path)) is None


# Other files at the lock's path.


def a_lock_for_all(path: Path) -> None:
    path.touch()
    path.chmod(0o666)


def a_lock_with_two_names(path: Path) -> None:
    (path.parent / "precious").write_text("precious")
    (path.parent / "precious").chmod(0o600)
    os.link(path.parent / "precious", path)


def test_an_unwritable_directory_has_no_owner_to_remove(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "d.sock.lock").touch(0o600)
    opened = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and not flags & os.O_EXCL:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(ConfigError, match=r"Read-only file system: name another place with --socket"):
        claim_endpoint(str(place / "d.sock"))


def a_lock_of_another(path: Path) -> None:
    path.touch(0o600)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        path.chmod(0o644)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (a_link_to_a_file, "cannot be used as a lock file"),
        (a_link_to_nothing, "cannot be used as a lock file"),
        (a_directory, "cannot be used as a lock file"),
        (a_fifo, "is not a regular file"),
        (a_lock_for_all, r"is open to other users \(mode 0666\)"),
        (a_lock_with_two_names, "has other hard links"),
        (a_lock_of_another, "belongs to uid 65534|is open to other users"),
    ],
)
def test_a_foreign_lock_file_is_refused_and_not_touched(place: Path, make: Callable[[Path], None], reason: str) -> None:
    make(place / "d.sock.lock")
    with pytest.raises(ConfigError, match=rf"d\.sock\.lock {reason}.*: remove it, or name another"):
        claim_endpoint(str(place / "d.sock"))
    assert not (place / "d.sock").exists()
    precious = place / "precious"
    assert not precious.exists() or precious.read_text() == "precious"


# The directory.


@pytest.mark.parametrize("unsafe", [0o777, 0o770, 0o757])
def test_a_directory_in_which_others_may_replace_the_socket_is_refused(place: Path, unsafe: int) -> None:
    place.chmod(unsafe)
    with pytest.raises(ConfigError, match=rf"others may write to {place} \(mode {unsafe:04o}\).*: choose a directory"):
        claim_endpoint(str(place / "d.sock"))
    assert (os.listdir(place), mode(place)) == ([], unsafe)


def test_a_sticky_directory_like_tmp_is_accepted(place: Path) -> None:
    place.chmod(0o1777)
    claim_endpoint(str(place / "d.sock")).release()
    assert mode(place) == 0o1777


def test_a_directory_of_another_user_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    else:
        us = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.raises(ConfigError, match=r"belongs to uid \d+, who could replace the daemon's socket"):
        claim_endpoint(str(place / "d.sock"))
    assert os.listdir(place) == []


def test_an_impossible_directory_is_reported(place: Path) -> None:
    (place / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the daemon cannot create its socket at .*: Not a directory"):
        claim_endpoint(str(place / "file" / "d.sock"))


def test_an_overlong_path_leaves_only_the_lock(place: Path) -> None:
    path = place / ("x" * 120)
    with pytest.raises(ConfigError, match="the daemon cannot listen at"):
        claim_endpoint(str(path))
    assert owner(str(path)) is None


def test_a_relative_path_is_relative_to_the_working_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    claim = claim_endpoint("d.sock")
    assert sorted(os.listdir(place)) == ["d.sock", "d.sock.lock"]
    claim.release()
    assert os.listdir(place) == ["d.sock.lock"]


# The end.


def test_at_the_end_a_foreign_socket_stays(place: Path) -> None:
    path = place / "d.sock"
    claim = claim_endpoint(str(path))
    path.rename(place / "old.sock")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        claim.release()
        assert path.exists()


def test_at_the_end_a_missing_socket_is_ignored(place: Path) -> None:
    claim = claim_endpoint(str(place / "d.sock"))
    (place / "d.sock").unlink()
    claim.release()
    assert owner(str(place / "d.sock")) is None


def test_a_passed_socket_is_locked_and_stays(place: Path) -> None:
    path = place / "d.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    claim = adopt_listener(str(path), listener)
    assert owner(str(path)) == os.getpid()
    with pytest.raises(DaemonRunning):
        claim_endpoint(str(path))
    claim.release()
    assert path.exists()
    assert owner(str(path)) is None


def test_a_path_without_a_daemon_has_no_owner(place: Path) -> None:
    assert owner(str(place / "d.sock")) is None


def test_a_removed_socket_is_recreated_and_connections_waiting_at_the_old_one_are_kept(place: Path) -> None:
    path = place / "d.sock"
    claim = claim_endpoint(str(path))
    former = claim.listener
    assert not claim.restore()
    with connect(path) as early:
        os.unlink(path)
        before = os.umask(0)
        try:
            assert claim.restore()
        finally:
            assert os.umask(before) == 0
        assert mode(path) == 0o600
        with connect(path), former.accept()[0] as served:
            claim.listener.accept()[0].close()
            served.sendall(b"hello")
            assert early.recv(5) == b"hello"
    former.close()
    assert not claim.restore()
    claim.release()
    assert sorted(os.listdir(place)) == ["d.sock.lock"]
    assert not claim.restore()


def test_a_removed_lock_file_is_recreated_unless_there_is_another_owner(place: Path) -> None:
    path = place / "d.sock"
    claim = claim_endpoint(str(path))
    former = claim.listener
    os.unlink(path)
    os.unlink(f"{path}.lock")
    assert owner(str(path)) is None
    assert claim.restore()
    former.close()
    assert (owner(str(path)), mode(place / "d.sock.lock")) == (os.getpid(), 0o600)
    os.unlink(path)
    os.unlink(f"{path}.lock")
    with Child(held(path)) as other:
        assert other.report() == "mine"
        assert not claim.restore(), "who has come meanwhile has it"
        os.unlink(path)
        with pytest.raises(DaemonRunning, match=f"process {other.pid} .*its socket does not exist.*zot daemon stop"):
            claim.restore()
    claim.release()


def test_a_removed_directory_is_not_recreated(place: Path) -> None:
    claim = claim_endpoint(str(place / "deep" / "d.sock"))
    for name in os.listdir(place / "deep"):
        os.unlink(place / "deep" / name)
    os.rmdir(place / "deep")
    with pytest.raises(FileNotFoundError):
        claim.restore()
    claim.release()
    assert os.listdir(place) == []
