from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from zot.tools.file_access import keep

THEIRS = (1234, 5678)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Descriptors of an old and a new file."""
    old, new = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT, 0o600) for name in ("old", "new"))
    yield old, new
    os.close(old)
    os.close(new)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """To whom files were given, in a system where that is allowed."""
    owners: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda fd, uid, gid: owners.append((uid, gid)))
    return owners


class Attributes:
    """The extended attributes of files in a system that has them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of: dict[int, dict[str, bytes]] = {}
        self.refused: set[str] = set()
        patch.setattr(os, "listxattr", lambda fd: list(self.of.get(fd, {})), raising=False)
        patch.setattr(os, "getxattr", lambda fd, name: self.of[fd][name], raising=False)
        patch.setattr(os, "setxattr", self._set, raising=False)

    def _set(self, fd: int, name: str, value: bytes) -> None:
        if name in self.refused:
            raise refusal()
        self.of.setdefault(fd, {})[name] = value


@pytest.fixture
def attributes(monkeypatch: pytest.MonkeyPatch) -> Attributes:
    return Attributes(monkeypatch)


def refusal(*args: object) -> PermissionError:
    return PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def about(mode: int = 0o644, *, owner: tuple[int, int] | None = None, links: int = 1) -> os.stat_result:
    return os.stat_result((stat.S_IFREG | mode, 1, 1, links, *(owner or (os.geteuid(), os.getegid())), 0, 0, 0, 0))


def test_the_mode_is_kept(files: tuple[int, int]) -> None:
    old, new = files
    assert keep(old, about(0o4751), new) == []
    assert stat.S_IMODE(os.fstat(new).st_mode) == 0o4751


def test_the_owner_is_kept_before_the_mode(files: tuple[int, int], given: list[tuple[int, int]]) -> None:
    # The system takes set-user-id from a file that it gives to another.
    old, new = files
    assert keep(old, about(0o4751, owner=THEIRS), new) == []
    assert given == [THEIRS]
    assert stat.S_IMODE(os.fstat(new).st_mode) == 0o4751


def test_one_s_own_files_change_no_owner(files: tuple[int, int], given: list[tuple[int, int]]) -> None:
    old, new = files
    now = os.fstat(new)
    assert keep(old, about(owner=(now.st_uid, now.st_gid)), new) == []
    assert given == []


@pytest.mark.parametrize("groups_too", [True, False])
def test_a_file_whose_owner_cannot_be_restored_is_not_set_user_id(
    groups_too: bool, files: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fchown(fd: int, uid: int, gid: int) -> None:
        asked.append((uid, gid))
        if uid != -1 or not groups_too:
            raise refusal()

    old, new = files
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", fchown)
    now = os.fstat(new)
    assert keep(old, about(0o6755, owner=THEIRS), new) == [
        f"its owner was 1234:5678 and is now {now.st_uid}:{now.st_gid}"
    ]
    assert asked == [THEIRS, (-1, 5678)]
    assert stat.S_IMODE(os.fstat(new).st_mode) == 0o755


def test_user_extended_attributes_are_kept(files: tuple[int, int], attributes: Attributes) -> None:
    old, new = files
    kept = {"user.origin": b"somewhere", "system.posix_acl_access": b"\2\0"}
    attributes.of[old] = {**kept, "security.selinux": b"label"}
    assert keep(old, about(), new) == []
    assert attributes.of[new] == kept


def test_lost_extended_attributes_are_named(files: tuple[int, int], attributes: Attributes) -> None:
    old, new = files
    attributes.of[old] = {"user.a": b"1", "user.b": b"2", "user.c": b"3"}
    attributes.refused = {"user.a", "user.c"}
    assert keep(old, about(), new) == ["it lost the extended attributes user.a, user.c"]
    assert attributes.of[new] == {"user.b": b"2"}


def test_a_file_that_cannot_be_opened_shows_no_attributes(files: tuple[int, int], attributes: Attributes) -> None:
    assert keep(None, about(), files[1]) == []


def test_a_file_system_without_extended_attributes_loses_nothing(
    files: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listxattr(fd: int) -> list[str]:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "listxattr", listxattr, raising=False)
    assert keep(files[0], about(), files[1]) == []
    monkeypatch.delattr(os, "listxattr")
    assert keep(files[0], about(), files[1]) == []


def test_a_failing_disk_is_not_a_missing_attribute(files: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def listxattr(fd: int) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "listxattr", listxattr, raising=False)
    with pytest.raises(OSError, match="Input/output error"):
        keep(files[0], about(), files[1])


def test_other_links_are_named(files: tuple[int, int]) -> None:
    assert keep(files[0], about(links=3), files[1]) == ["it had 2 other hard links, which keep the old content"]
