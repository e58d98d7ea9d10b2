"""Files as tools see them: opened by descriptor, replaced atomically, attributes kept."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self

from zot.errors import ToolFailed
from zot.tools.read_state import Keys, version_outside

#: What people and their programs attach to files, and access control lists. The rest belongs to the system.
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")


def keep(old: int | None, about: os.stat_result, new: int) -> list[str]:
    """Give the open file ``new`` the attributes of ``old``, about which the system said ``about``.

    ``old`` is None when it cannot be opened; then it has no attributes that we could see. Return a sentence for
    each thing that could not be kept. A file that got another owner is not set-user-id.
    """
    notes = []
    mode = stat.S_IMODE(about.st_mode)
    if not _keep_owner(about, new):
        notes.append("its owner was {}:{} and is now {}:{}".format(about.st_uid, about.st_gid, *_owner(new)))
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(new, mode)
    if old is not None and (lost := _copy_extended(old, new)):
        notes.append(f"it lost the extended attributes {', '.join(lost)}")
    if about.st_nlink > 1:
        notes.append(f"it had {about.st_nlink - 1} other hard links, which keep the old content")
    return notes


def _keep_owner(about: os.stat_result, new: int) -> bool:
    if _owner(new) == (about.st_uid, about.st_gid):
        return True
    try:
        os.fchown(new, about.st_uid, about.st_gid)
    except PermissionError:  # who may not give a file away may still share it with a group
        with suppress(PermissionError):
            os.fchown(new, -1, about.st_gid)
        return False
    return True


def _owner(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_uid, about.st_gid


def _copy_extended(old: int, new: int) -> list[str]:
    """Copy the extended attributes; return the names of those that could not be."""
    lost = []
    for name in _extended(old):
        try:
            os.setxattr(new, name, os.getxattr(old, name))
        except OSError:
            lost.append(name)
    return lost


def _extended(fd: int) -> list[str]:
    if not hasattr(os, "listxattr"):  # not on this system
        return []
    try:
        names = os.listxattr(fd)
    except OSError as exc:
        if exc.errno == errno.ENOTSUP:
            return []
        raise
    return [name for name in names if name.startswith(_KEPT_ATTRIBUTES)]


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Replaced(NamedTuple):
    """What came of a replacement: if the file is new, what could not be kept of the old one, and the new state."""

    created: bool
    notes: tuple[str, ...]
    about: os.stat_result


class Place:
    """Where a file or directory is, or may be made. Owns ``directory``, an open descriptor.

    ``shown`` is what the model called it, and what errors call it; ``path`` is where it really was when it was found.
    """

    def __init__(self, directory: int, name: str, shown: str, path: str) -> None:
        self._directory = directory
        self._name = name
        self._shown = shown
        self.path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._directory)

    @property
    def keys(self) -> Keys:
        """What names this place, whichever path leads here: its directory, as long as that exists, and where it is."""
        about = os.fstat(self._directory)
        return (about.st_dev, about.st_ino, self._name), self.path

    @contextmanager
    def open(self) -> Iterator[int]:
        """Open the file or directory to read it. Raise ToolFailed, also for what the system refuses meanwhile.

        Pipes, sockets and devices are refused: reading them may never end.
        """
        try:
            fd = self._descriptor()
            try:
                mode = os.fstat(fd).st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    raise ToolFailed(f"cannot read {self._shown}: not a regular file")
                yield fd
            finally:
                os.close(fd)
        except OSError as exc:
            raise failure("read", self._shown, exc) from exc

    def exists(self) -> bool:
        """Tell if something is here. Raise ToolFailed if it is something that cannot be replaced by a file."""
        return self._existing() is not None

    def replace(self, data: bytes, *, expected: os.stat_result | None = None, mode: int | None = None) -> Replaced:
        """Make ``data`` the whole content of the file.

        Whoever looks sees the old content or the new, never a part. An existing file keeps its mode, owner and
        extended attributes, a new one gets ``mode``, or what the umask leaves. Raises ToolFailed, and then nothing has
        changed; also if the file is no longer the one that ``expected`` tells about.

        A direct call and not a thread: a cancelled call could not stop the thread, so the file would change after
        the model was told that it did not. Nothing waits for the disk, since we rename without fsync.
        """
        try:
            return self._write_and_rename(data, expected, mode)
        except OSError as exc:
            raise failure("write", self._shown, exc) from exc

    def remove(self, *, expected: os.stat_result) -> None:
        """Remove the file, if it is still the one that ``expected`` tells about. Raise ToolFailed."""
        try:
            if _differ(expected, self._existing()):
                raise ToolFailed(f"{self._shown} was changed by somebody else at the same time")
            os.unlink(self._name, dir_fd=self._directory)
        except OSError as exc:
            raise failure("remove", self._shown, exc) from exc

    def _descriptor(self) -> int:
        return os.open(self._name, _READ, dir_fd=self._directory)

    def _existing(self) -> os.stat_result | None:
        try:
            about = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(about.st_mode):
            raise ToolFailed(f"cannot write {self._shown}: it is a directory")
        if not stat.S_ISREG(about.st_mode):
            # Renaming over it would put a file where the device or pipe was.
            raise ToolFailed(f"cannot write {self._shown}: not a regular file")
        return about

    def _write_and_rename(self, data: bytes, expected: os.stat_result | None, mode: int | None) -> Replaced:
        old = self._existing()
        if old is not None:
            self.check_writable()
        temp = f".zot-{os.urandom(8).hex()}.tmp"
        fd = self._create(temp, 0o666 if old is None else 0o600)
        try:
            _write_all(fd, data)
            notes = [] if old is None else self._keep(old, fd)
            if old is None and mode is not None:
                os.fchmod(fd, mode)
            if expected is not None and _differ(expected, self._existing()):
                raise ToolFailed(f"{self._shown} was changed by somebody else at the same time; read it again")
            self._rename(temp)
            # Only now: the new name is a change, too.
            return Replaced(old is None, tuple(notes), os.fstat(fd))
        except BaseException:
            with suppress(FileNotFoundError):  # the whole directory may be gone
                os.unlink(temp, dir_fd=self._directory)
            raise
        finally:
            os.close(fd)

    def check_writable(self) -> None:
        """Raise ToolFailed if this user may not write the file: who may write its directory could replace it all the
        same."""
        effective = os.access in os.supports_effective_ids
        if not os.access(self._name, os.W_OK, dir_fd=self._directory, effective_ids=effective):
            raise ToolFailed(f"cannot write {self._shown}: it is read-only; if it is to change, make it writable first")

    def _create(self, temp: str, mode: int) -> int:
        # The kernel applies the umask to the mode; asking for the umask would change it for other threads.
        try:
            return os.open(temp, _CREATE, mode, dir_fd=self._directory)
        except PermissionError as exc:
            raise ToolFailed(
                f"cannot write {self._shown}: {exc.strerror} for new files in its directory, which every change needs"
            ) from exc

    def _rename(self, temp: str) -> None:
        try:
            os.replace(temp, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
            raise ToolFailed(
                f"cannot write {self._shown}: it is mounted there by itself and cannot be replaced; write it with bash"
            ) from exc

    def _keep(self, about: os.stat_result, new: int) -> list[str]:
        try:
            old = self._descriptor()
        except PermissionError:
            return keep(None, about, new)
        try:
            return keep(old, about, new)
        finally:
            os.close(old)


def read_at(fd: int, size: int, position: int) -> bytes:
    """Return ``size`` bytes of a file from ``position`` on, fewer only at its end."""
    parts = []
    while size > 0 and (part := os.pread(fd, size, position)):
        parts.append(part)
        size -= len(part)
        position += len(part)
    return b"".join(parts)


def failure(verb: str, shown: str, exc: OSError) -> ToolFailed:
    """Return what the model hears when the system refuses."""
    return ToolFailed(f"cannot {verb} {shown}: {exc.strerror or exc}")


def _differ(one: os.stat_result, other: os.stat_result | None) -> bool:
    if other is None:
        return True
    return version_outside(one) != version_outside(other)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
