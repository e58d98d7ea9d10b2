"""Files as the tools see them: found from the session's directory, opened safely, replaced whole or not at all."""

from __future__ import annotations

import os
import stat

from zot.errors import ToolFailed


def resolve(path: str, cwd: str) -> str:
    """Return ``path`` as an absolute path. Raise ToolFailed if no file can have that name."""
    if not path:
        raise ToolFailed("path must not be empty")
    if "\0" in path:
        raise ToolFailed("path must not contain a NUL character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as exc:
        raise ToolFailed(f"path cannot be a file name: {exc.reason}") from exc
    return os.path.join(cwd, path)


def open_to_read(path: str, shown: str) -> int:
    """Open a file or directory and return its descriptor. Raise ToolFailed, naming it ``shown``.

    Pipes, sockets and devices are refused: reading them may never end.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError as exc:
        raise failure("read", shown, exc) from exc
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(fd)
        raise ToolFailed(f"cannot read {shown}: not a regular file")
    return fd


def read_at(fd: int, size: int, position: int) -> bytes:
    """Return ``size`` bytes of a file from ``position`` on, fewer only at its end."""
    parts = []
    while size > 0 and (part := os.pread(fd, size, position)):
        parts.append(part)
        size -= len(part)
        position += len(part)
    return b"".join(parts)


def make_parents(path: str, shown: str) -> None:
    """Create the directories that a file, or the target of a link, is to be in. Raise ToolFailed."""
    try:
        os.makedirs(os.path.dirname(os.path.realpath(path)), exist_ok=True)
    except FileExistsError as exc:  # "File exists" would send the model looking in the wrong place
        raise ToolFailed(f"cannot write {shown}: Not a directory") from exc
    except OSError as exc:
        raise failure("write", shown, exc) from exc


def replace(path: str, data: bytes, shown: str) -> bool:
    """Make ``data`` the whole content of a file; return True if the file is new.

    Whoever looks sees the old content or the new, never a part. Symbolic links stay and their target is written;
    an existing file keeps its mode, a new one gets what the umask leaves. Raises ToolFailed, naming the file
    ``shown``, and then nothing has changed.

    A direct call and not a thread: a cancelled call could not stop the thread, so the file would change after
    the model was told that it did not. Nothing waits for the disk, since we rename without fsync.
    """
    try:
        target = os.path.realpath(path)
        mode = _existing_mode(target, shown)
        _write_and_rename(target, data, mode)
    except OSError as exc:
        raise failure("write", shown, exc) from exc
    return mode is None


def failure(verb: str, shown: str, exc: OSError) -> ToolFailed:
    """Return what the model hears when the system refuses."""
    return ToolFailed(f"cannot {verb} {shown}: {exc.strerror or exc}")


def _existing_mode(target: str, shown: str) -> int | None:
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise ToolFailed(f"cannot write {shown}: it is a directory")
    if not stat.S_ISREG(mode):
        # Renaming over it would put a file where the device or pipe was.
        raise ToolFailed(f"cannot write {shown}: not a regular file")
    return stat.S_IMODE(mode)


def _write_and_rename(target: str, data: bytes, mode: int | None) -> None:
    temp = os.path.join(os.path.dirname(target), f".zot-{os.urandom(8).hex()}.tmp")
    # The kernel applies the umask to 0666; asking for the umask would change it for other threads.
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600)
    try:
        try:
            _write_all(fd, data)
            if mode is not None:
                os.fchmod(fd, mode)
        finally:
            os.close(fd)
        os.replace(temp, target)
    except BaseException:
        os.unlink(temp)
        raise


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
