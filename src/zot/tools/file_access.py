"""Files of tools: found by path, under a lock in one directory only, and read or replaced by descriptor."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol, Self

from zot.errors import ToolFailed
from zot.files import MAX_LINKS, OPEN_DIRECTORY, link_target
from zot.tools.base import Keys, version_from_status

_OPEN_BENEATH = OPEN_DIRECTORY | os.O_NOFOLLOW
#: Attributes set by users and their programs, and access control lists. All others belong to the system.
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Paths(Protocol):
    """Resolver of paths, which decides where they may lead."""

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` from ``cwd`` through all symbolic links; the file need not exist.

        With ``make_parents``, creates missing directories on the way. The caller closes the place. Raise ToolFailed if
        the path cannot be resolved or leads to a forbidden place.
        """


class UnrestrictedPaths:
    """Resolves all paths as the system does."""

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` as `Paths.find` specifies."""
        where = os.path.join(cwd, checked(path))
        if make_parents and where.startswith(os.path.join(cwd, "")) and not os.path.isdir(cwd):
            # Creating a removed cwd again would hide that everything in it is gone.
            raise ToolFailed(f"cannot write {path}: the cwd {cwd} no longer exists")
        try:
            for _ in range(MAX_LINKS):
                head, name = os.path.split(where.rstrip("/") or "/")
                if name in ("", ".", ".."):
                    return FileLocation(os.open(where, OPEN_DIRECTORY), ".", path, os.path.realpath(where))
                directory = _open_parent(head, make=make_parents)
                try:
                    target = link_target(name, directory)
                except OSError:
                    os.close(directory)
                    raise
                if target is None:
                    return FileLocation(directory, name, path, os.path.join(os.path.realpath(head), name))
                os.close(directory)
                where = os.path.join(head, target)
            raise too_many_links()
        except OSError as exc:
            raise failure("write" if make_parents else "read", path, exc) from exc


def checked(path: str) -> str:
    """Return ``path``. Raise ToolFailed if it is not valid as a file name."""
    if not path:
        raise ToolFailed("path must not be empty")
    if "\0" in path:
        raise ToolFailed("path must not contain a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as exc:
        raise ToolFailed(f"path cannot be a file name: {exc.reason}") from exc
    return path


def too_many_links() -> OSError:
    """Return the kernel's error for circular links."""
    return OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _open_parent(path: str, *, make: bool) -> int:
    try:
        return os.open(path, OPEN_DIRECTORY)
    except FileNotFoundError:
        if not make:
            raise
    real = os.path.realpath(path)  # of a dangling link, its target
    os.makedirs(real, exist_ok=True)
    return os.open(real, OPEN_DIRECTORY)


class LockedPaths:
    """Resolves paths in ``root`` and below only, except for ``hidden`` ones there.

    Walks from directory to directory by descriptor, and never lets the kernel follow a link: links are read and
    resolved here, beneath the root. So a link created during the walk is not followed either.
    """

    def __init__(self, root: str, *, hidden: Sequence[str] = (), protected: Sequence[str] | None = None) -> None:
        """With ``protected``, refuse the protected paths, these in addition to those that zot knows."""
        self.root = os.path.realpath(root)
        self._spellings = {self.root, os.path.abspath(root)}
        within = os.path.join(self.root, "")
        self._hidden = [path for path in map(os.path.realpath, hidden) if path.startswith(within)]
        self._protected = protected
        #: Where protected paths lead, by the directory of their repository; found on the way.
        self._led: dict[str, Sequence[str]] = {}

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` as `Paths.find` specifies. Raise ToolFailed if it leads outside."""
        names = self._beneath(os.path.join(cwd, checked(path)), path)
        try:
            walk = _Walk(os.open(self.root, _OPEN_BENEATH), self.root, make_parents=make_parents)
        except OSError as exc:
            raise failure("open", self.root, exc) from exc
        try:
            name = self._follow(walk, names, path)
            return FileLocation(walk.take(), name, path, os.path.join(walk.path, name))
        except OSError as exc:
            raise failure("write" if make_parents else "read", path, exc) from exc
        finally:
            walk.close()

    def holds(self, path: str) -> bool:
        """Return whether an absolute path begins with the root; it may still lead out."""
        return any(path == root or path.startswith(os.path.join(root, "")) for root in self._spellings)

    def _follow(self, walk: _Walk, names: list[str], shown: str) -> str:
        """Walk along ``names`` to the last directory; return the remaining name."""
        left, links = names[::-1], 0
        while left:
            name = left.pop()
            if name == "..":
                if not walk.up():
                    raise self._outside(shown)
            elif (target := link_target(name, walk.here)) is not None:
                self._check(os.path.join(walk.path, name), shown)
                links += 1
                if links > MAX_LINKS:
                    raise too_many_links()
                left += self._along(walk, target, shown)[::-1]
            elif walk.make_parents and ".." in left and not walk.has(name):
                left = _without_detours([name, *left[::-1]])[::-1]
            else:
                self._check(os.path.join(walk.path, name), shown)
                if not left:
                    return name
                walk.down(name)
        return "."

    def _along(self, walk: _Walk, target: str, shown: str) -> list[str]:
        """Return the names in a link's target, and move to the root if it is absolute."""
        if not target.startswith("/"):
            return _names(target)
        walk.to_root()
        return self._beneath(target, shown)

    def _beneath(self, path: str, shown: str) -> list[str]:
        """Return the names from the root to an absolute path. Raise ToolFailed if it is outside."""
        for root in self._spellings:
            if path == root or path.startswith(f"{root.rstrip('/')}/"):
                return _names(path[len(root) :])
        raise self._outside(shown)

    def _check(self, path: str, shown: str) -> None:
        """Raise ToolFailed for hidden paths. By name: they need not exist yet."""
        if path in self._hidden:
            raise ToolFailed(f"{shown} is in {path}, where zot keeps its own files; locked tools do not touch it")
        if self._protected is None:
            return
        from zot.config.protected_paths import REPOSITORY, protection_of  # Imported lazily: start-up budget.
        from zot.tools.protection import led_to

        directory = os.path.dirname(path)
        if directory not in self._led and (
            directory == self.root or os.path.lexists(os.path.join(directory, REPOSITORY))
        ):
            is_top = directory == self.root
            place = "" if is_top else os.path.relpath(directory, self.root)
            self._led[directory] = led_to(self.root, place, self._protected if is_top else ())
        led = [one for known in self._led.values() for one in known]
        if protection := protection_of(os.path.relpath(path, self.root), [*self._protected, *led]):
            raise ToolFailed(f"{shown} is protected: other programs run what is in {protection}; --lock refuses it")

    def _outside(self, shown: str) -> ToolFailed:
        return ToolFailed(
            f"{shown} is outside of {self.root}; the tools are locked to this directory and what is below it"
        )


class LockedPathsForReading:
    """Resolves paths as ``lock`` does, and also in ``more`` directories, each locked separately. For reading only."""

    def __init__(self, lock: LockedPaths, more: Sequence[str]) -> None:
        self._lock = lock
        self._more = [LockedPaths(directory) for directory in more]

    def find(self, path: str, cwd: str, *, make_parents: bool = False) -> FileLocation:
        """Resolve ``path`` as `Paths.find` specifies. Raise ToolFailed if it leads outside."""
        where = os.path.join(cwd, checked(path))
        lock = next((lock for lock in self._more if lock.holds(where)), self._lock)
        return lock.find(path, cwd, make_parents=make_parents)


class _Walk:
    """Path walked from a root: an open descriptor for each step, so that going up follows no link."""

    def __init__(self, root: int, path: str, *, make_parents: bool) -> None:
        self.make_parents = make_parents
        self._way = [root]
        self._names = [path]

    @property
    def path(self) -> str:
        return os.path.join(*self._names)

    @property
    def here(self) -> int:
        return self._way[-1]

    def down(self, name: str) -> None:
        try:
            self._way.append(os.open(name, _OPEN_BENEATH, dir_fd=self.here))
        except FileNotFoundError:
            if not self.make_parents:
                raise
            with suppress(FileExistsError):  # created by another process meanwhile
                os.mkdir(name, dir_fd=self.here)
            self._way.append(os.open(name, _OPEN_BENEATH, dir_fd=self.here))
        self._names.append(name)

    def has(self, name: str) -> bool:
        """Return whether an entry of this name exists here."""
        try:
            os.stat(name, dir_fd=self.here, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def up(self) -> bool:
        """Go up; False at the root."""
        if len(self._way) == 1:
            return False
        os.close(self._way.pop())
        self._names.pop()
        return True

    def to_root(self) -> None:
        while self.up():
            pass

    def take(self) -> int:
        """Return the current descriptor, which the caller closes."""
        return self._way.pop()

    def close(self) -> None:
        while self._way:
            os.close(self._way.pop())


def _without_detours(names: list[str]) -> list[str]:
    """Return the names without those cancelled by ``..``. The first does not exist, so none of them is a link."""
    kept: list[str] = []
    for at, name in enumerate(names):
        if name != "..":
            kept.append(name)
            continue
        kept.pop()
        if not kept:
            return names[at + 1 :]
    return kept


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


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

    async def save(self, data: bytes, *, expected: os.stat_result | None = None) -> Replaced:
        """Replace the whole content as `replace` does, which needs no await: an abort comes before or after it."""
        return self.replace(data, expected=expected)

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
