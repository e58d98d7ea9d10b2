"""What this user allowed to run, by content: a directory that changes is no longer what was trusted."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from zot.config.trust import fingerprint
from zot.errors import ConfigError, MalformedFile, UserError
from zot.files import load
from zot.learned import decoder
from zot.messages import timestamp
from zot.private import exclusive, replace_file

_VERSION = 1
_FILE_NAME = "trust.json"
_OTHERS_MAY_WRITE = 0o022


class Trusted(msgspec.Struct, frozen=True):
    """A directory that the user trusts, with the fingerprint that it had then."""

    directory: str
    fingerprint: str
    at: str


class _File(msgspec.Struct, frozen=True):
    version: int
    trusted: tuple[Trusted, ...] = ()


class TrustStore:
    """The directories that the user of ``home`` trusts, each by its place and its content, in one file.

    Every method raises ConfigError if that file cannot be relied on: damaged, of a newer zot, or open to others.
    """

    def __init__(self, home: str, *, now: Callable[[], str] = timestamp) -> None:
        self._home = home
        self._path = os.path.join(home, _FILE_NAME)
        self._now = now

    def is_trusted(self, directory: str, data_patterns: Sequence[str] = ()) -> bool:
        """Tell if ``directory`` was trusted and nothing in it but its data has changed since.

        What can no longer be checked is not trusted.
        """
        entry = self._read().get(os.path.realpath(directory))
        if entry is None:
            return False
        try:
            return entry.fingerprint == fingerprint(directory, data_patterns)
        except UserError:
            return False

    def trust(self, directory: str, data_patterns: Sequence[str] = ()) -> Trusted:
        """Trust ``directory`` as it is now. Raise UserError if it cannot be checked."""
        where = os.path.realpath(directory)
        entry = Trusted(where, fingerprint(where, data_patterns), self._now())
        with exclusive(self._home):
            self._write({**self._read(), where: entry})
        return entry

    def untrust(self, directory: str) -> bool:
        """Trust ``directory`` no longer; False if it was not trusted. It need not exist any more."""
        with exclusive(self._home):
            known = self._read()
            entry = known.pop(os.path.realpath(directory), None)
            if entry is not None:
                self._write(known)
        return entry is not None

    def entries(self) -> tuple[Trusted, ...]:
        """Return what is trusted, by directory, whether or not it has changed since."""
        return tuple(entry for _, entry in sorted(self._read().items()))

    def _read(self) -> dict[str, Trusted]:
        try:
            _check_owner(self._home, os.stat(self._home))
            found = load(self._path, decoder(_File).decode, check=partial(_check_owner, self._path))
        except FileNotFoundError:
            return {}
        except OSError as problem:
            raise ConfigError(f"{self._home}: {problem.strerror}") from None
        except MalformedFile as problem:
            raise ConfigError(
                f"{self._path} is damaged: {problem.reason}; remove it, and trust again what you need"
            ) from None
        if found.version != _VERSION:
            raise ConfigError(f"{self._path} has version {found.version}; this zot knows only version {_VERSION}")
        return {entry.directory: entry for entry in found.trusted}

    def _write(self, known: Mapping[str, Trusted]) -> None:
        data = msgspec.json.encode(_File(_VERSION, tuple(known.values())))
        replace_file(self._path, msgspec.json.format(data, indent=2) + b"\n")


def _check_owner(path: str, about: os.stat_result) -> None:
    """Raise ConfigError if somebody else could have written there."""
    if about.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path} belongs to another user, so it cannot say what you trust")
    is_sticky = stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX  # others cannot replace our files there
    if about.st_mode & _OTHERS_MAY_WRITE and not is_sticky:
        raise ConfigError(f"{path} can be changed by others, so it cannot say what you trust; try: chmod go-w {path}")
