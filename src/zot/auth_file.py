"""`$ZOT_HOME/auth.json`: the keys that `zot login` stored, and the commands that print one."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from zot.errors import ConfigError
from zot.learned import learned

FILE_NAME = "auth.json"
_OTHERS = 0o077
_MAX_BYTES = 1024 * 1024
#: How long another `zot login` may take to write the file; it holds the lock for milliseconds.
_LOCK_S = 5.0
_LOOK_AGAIN_S = 0.02


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored for one provider. If it has a key and a command, the key counts.

    It is for the server at ``base_url``, and for no other; without one, for the vendor's own.
    """

    key: str = ""
    command: str = ""
    base_url: str = ""

    def __repr__(self) -> str:
        """Say what kind it is, and nothing else."""
        return f"Entry({'key' if self.key else 'command' if self.command else 'empty'})"


def stored(home: str, provider: str) -> Entry | None:
    """Return what is stored for ``provider``. Raise ConfigError if the file is damaged or open to others."""
    raw = _read(path_in(home)).get(provider)
    return None if raw is None else _entry(home, provider, raw)


def check(home: str) -> tuple[str, ...] | None:
    """Return for whom something is stored, None if there is no such file. Raise ConfigError as `stored` does."""
    path = path_in(home)
    return tuple(_read(path)) if os.path.lexists(path) else None


def store(home: str, provider: str, entry: Entry) -> None:
    """Store an entry in place of the provider's old one; those of others stay as they are. Raise ConfigError."""
    with _exclusive(home):
        _write(path_in(home), {**_read(path_in(home)), provider: msgspec.Raw(msgspec.json.encode(entry))})


def remove(home: str, provider: str) -> bool:
    """Forget what is stored for ``provider``; False if nothing was. Raise ConfigError."""
    if not os.path.lexists(path_in(home)):
        return False
    with _exclusive(home):
        entries = _read(path_in(home))
        if entries.pop(provider, None) is None:
            return False
        _write(path_in(home), entries)
    return True


def path_in(home: str) -> str:
    """Return where the file is, whether or not it exists."""
    return os.path.join(home, FILE_NAME)


def _read(path: str) -> dict[str, msgspec.Raw]:
    """Return the entries as they stand there: what we do not understand must survive a change."""
    try:
        # Not to wait for the writer of a pipe, nor to be given a terminal: what is no file is refused below.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    try:
        # Of what was opened, not of its name: a link may lead anywhere, and may be changed while we look.
        _check_private(path, os.fstat(descriptor))
        data = os.read(descriptor, _MAX_BYTES + 1)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    finally:
        os.close(descriptor)
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{path} is longer than {_MAX_BYTES} bytes: that is not ours")
    try:
        return msgspec.json.decode(data or b"{}", type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Without what the decoder says: it might quote a piece of a key.
        raise ConfigError(f'{path} is damaged: it must be like {{"anthropic": {{"key": "..."}}}}') from None


def _entry(home: str, provider: str, raw: msgspec.Raw) -> Entry:
    try:
        entry = msgspec.json.decode(raw, type=learned(Entry))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        entry = Entry()
    if not (entry.key or entry.command):
        raise ConfigError(
            f'{path_in(home)}: the entry for {provider} has neither "key" nor "command"; try: zot login {provider}'
        )
    return entry


def _check_private(path: str, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise ConfigError(f"{path} is not a file, so no key is taken from it")
    if about.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user, so no key is taken from it")
    if about.st_mode & _OTHERS:
        raise ConfigError(
            f"{path} is open to others (mode {stat.S_IMODE(about.st_mode):04o}), so no key is taken from it; "
            f"try: chmod 600 {path}"
        )


def _write(path: str, entries: Mapping[str, msgspec.Raw]) -> None:
    """Replace the file, whole or not at all. A link to it stays one."""
    data = msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n"
    target = os.path.realpath(path)
    temp = f"{target}.{os.urandom(8).hex()}"
    try:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            os.replace(temp, target)
        except BaseException:
            os.unlink(temp)
            raise
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None


@contextmanager
def _exclusive(home: str) -> Iterator[None]:
    """Let nobody else change the file meanwhile. Raise ConfigError if somebody does not stop doing so."""
    from zot.private import make_directory  # Only who changes the file needs it.

    try:
        make_directory(home)
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as problem:
        raise ConfigError(f"{home}: {problem.strerror}") from None
    try:
        _lock(descriptor, home)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, home: str) -> None:
    import fcntl  # Only who changes the file needs it.

    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(f"{home} has been locked by another zot for {_LOCK_S:g} s; try again") from None
            time.sleep(_LOOK_AGAIN_S)
        else:
            return
