"""Files of tools: opened by descriptor, replaced atomically, attributes kept."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self

from zot.errors import ToolFailed
from zot.tools.read_state import Keys, version_from_status

#: Attributes set by users and their programs, and access control lists. All others belong to the system.
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Replaced(NamedTuple):
    """Result of a replacement: whether the file is new, notes on lost attributes, and its new status."""

    created: bool
    notes: tuple[str, ...]
    about: os.stat_result


class FileLocation:
    """Location of an existing or future file or directory. Owns ``directory``, an open descriptor.

    ``shown`` is the model's name for it, used in errors; ``path`` is its real path when it was found.
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
        """Identity of this place, independent of the path: its directory's inode with its name, and its real path."""
        about = os.fstat(self._directory)
        return (about.st_dev, about.st_ino, self._name), self.path

    @contextmanager
    def open(self) -> Iterator[int]:
        """Open the file or directory for reading. Raise ToolFailed, also for an OSError in the body.

        Refuses pipes, sockets and devices: reading them may never end.
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
        """Return whether a file exists here. Raise ToolFailed if it is not a regular file."""
        return self._existing() is not None

    def replace(self, data: bytes, *, expected: os.stat_result | None = None, mode: int | None = None) -> Replaced:
        """Replace the whole content of the file by ``data``, atomically.

        An existing file keeps its mode, owner and extended attributes; a new one gets ``mode``, or the default of
        the umask. Raise ToolFailed, leaving the file unchanged; also if it no longer has the status ``expected``.

        Synchronous on purpose: a cancelled call could not stop a thread, so the file would change after the model
        got the result of an abort. It does not wait for the disk, since there is no fsync before the rename.
        """
        try:
            return self._write_and_rename(data, expected, mode)
        except OSError as exc:
            raise failure("write", self._shown, exc) from exc

    def remove(self, *, expected: os.stat_result) -> None:
        """Remove the file if it still has the status ``expected``. Raise ToolFailed."""
        try:
            if _differ(expected, self._existing()):
                raise ToolFailed(f"{self._shown} was changed by another program at the same time")
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
            # Renaming over it would replace a device or a pipe by a file.
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
                raise ToolFailed(f"{self._shown} was changed by another program at the same time; read it again")
            self._rename(temp)
            # Only now: the rename changes the status, too.
            return Replaced(old is None, tuple(notes), os.fstat(fd))
        except BaseException:
            with suppress(FileNotFoundError):  # the whole directory may be gone
                os.unlink(temp, dir_fd=self._directory)
            raise
        finally:
            os.close(fd)

    def check_writable(self) -> None:
        """Raise ToolFailed if this user may not write the file, although write access to its directory would do."""
        effective = os.access in os.supports_effective_ids
        if not os.access(self._name, os.W_OK, dir_fd=self._directory, effective_ids=effective):
            raise ToolFailed(f"cannot write {self._shown}: it is read-only; if it is to change, make it writable first")

    def _create(self, temp: str, mode: int) -> int:
        # The kernel applies the umask; reading the umask would change it for other threads.
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
                f"cannot write {self._shown}: it is a mount point and cannot be replaced; write it with bash"
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
    """Return an OSError as an error for the model."""
    return ToolFailed(f"cannot {verb} {shown}: {exc.strerror or exc}")


def keep(old: int | None, about: os.stat_result, new: int) -> list[str]:
    """Copy the attributes of the open file ``old``, whose status is ``about``, to ``new``.

    ``old`` is None if it cannot be opened; then extended attributes are not copied. Return a sentence for each
    attribute that could not be kept. Drops set-user-id if the owner changes.
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
    except PermissionError:  # without permission to change the owner, the group may still be set
        with suppress(PermissionError):
            os.fchown(new, -1, about.st_gid)
        return False
    return True


def _owner(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_uid, about.st_gid


def _copy_extended(old: int, new: int) -> list[str]:
    """Copy the extended attributes; return the names of those that failed."""
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


def _differ(one: os.stat_result, other: os.stat_result | None) -> bool:
    if other is None:
        return True
    return version_from_status(one) != version_from_status(other)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
