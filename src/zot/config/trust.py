"""Trust by content: directories this user allowed, bound to a fingerprint of their files."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial

import msgspec

from zot.encoding import decoder
from zot.errors import ConfigError, MalformedFile, UserError
from zot.files import directory_lock, load, read_chunks, replace_file
from zot.messages import timestamp

#: Files an extension may change besides its code. The last matching pattern decides, ``!`` means "not data".
DEFAULT_DATA = ("data/**", "*.db*", "*.log", "*.json", "!extension.json", "!package.json", "!tsconfig*.json")
MAX_FILES = 10_000
MAX_BYTES = 256 * 1024 * 1024

#: They define what runs and what is data, so no pattern makes them data.
_NEVER_DATA = frozenset({"extension.json", "SKILL.md"})

_VERSION = 1
_FILE_NAME = "trust.json"
_OTHERS_MAY_WRITE = 0o022


def fingerprint(directory: str, data_patterns: Sequence[str] = ()) -> str:
    """Return the fingerprint of ``directory``, independent of its name. Raise UserError if it cannot be computed.

    A pattern ending in ``/**`` is a directory of data; one with another ``/`` matches a whole relative path; any
    other a name at any depth. Directories too large to check on every start, links to directories outside, and
    special files are refused.
    """
    return _Reader(os.path.realpath(directory), data_patterns).read()


class _Reader:
    def __init__(self, root: str, data_patterns: Sequence[str]) -> None:
        self._root = root
        self._patterns = data_patterns
        self._count = 0
        self._bytes = 0

    def read(self) -> str:
        try:
            total = hashlib.sha256()
            for path in sorted(self._paths(), key=os.fsencode):
                for part in self._parts(path):
                    total.update(len(part).to_bytes(8, "big"))
                    total.update(part)
        except OSError as problem:
            raise UserError(f"{problem.filename or self._root}: {problem.strerror}") from None
        return f"sha256:{total.hexdigest()}"

    def _paths(self) -> Iterator[str]:
        """Yield the relative paths of all files except data, unordered."""
        left = [""]
        while left:
            below = left.pop()
            with os.scandir(os.path.join(self._root, below) if below else self._root) as entries:
                for entry in entries:
                    path = os.path.join(below, entry.name)
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if self._is_data(path, is_directory=is_directory):
                        continue
                    self._count += 1
                    if self._count > MAX_FILES:
                        raise UserError(f"{self._root} has more than {MAX_FILES} files, too many to be checked")
                    if is_directory:
                        left.append(path)
                    else:
                        yield path

    def _is_data(self, path: str, *, is_directory: bool) -> bool:
        if path in _NEVER_DATA:
            return False
        found = False
        for pattern in self._patterns:
            plain = pattern.removeprefix("!")
            if is_directory != plain.endswith("/**"):
                continue
            plain = plain.removesuffix("/**")
            if fnmatchcase(path if "/" in plain or is_directory else os.path.basename(path), plain):
                found = plain == pattern.removesuffix("/**")
        return found

    def _parts(self, path: str) -> Iterator[bytes]:
        """Yield the parts of one path that are hashed: always four, so no two directories hash alike."""
        full = os.path.join(self._root, path)
        mode = os.lstat(full).st_mode
        yield os.fsencode(path)
        if stat.S_ISLNK(mode):
            yield b"link"
            yield os.fsencode(os.readlink(full))
            yield self._target_digest(full)
        elif stat.S_ISREG(mode):
            yield b"file"
            yield b"executable" if mode & 0o111 else b""
            yield self._digest(full)
        else:
            raise UserError(f"{full} is neither a file nor a directory")

    def _target_digest(self, link: str) -> bytes:
        try:
            mode = os.stat(link).st_mode
        except OSError:  # a dangling link; once it has a target, the fingerprint differs
            return b""
        if stat.S_ISDIR(mode) and not f"{os.path.realpath(link)}/".startswith(f"{self._root}/"):
            raise UserError(f"{link} leads to a directory outside, which cannot be checked")
        return self._digest(link) if stat.S_ISREG(mode) else b""

    def _digest(self, path: str) -> bytes:
        digest = hashlib.sha256()
        for data in read_chunks(path):
            self._bytes += len(data)
            if self._bytes > MAX_BYTES:
                raise UserError(f"{self._root} has more than {MAX_BYTES} bytes, too many to be checked")
            digest.update(data)
        return digest.digest()


class Trusted(msgspec.Struct, frozen=True):
    """A trusted directory, with its fingerprint at that time."""

    directory: str
    fingerprint: str
    at: str


class _File(msgspec.Struct, frozen=True):
    version: int
    trusted: tuple[Trusted, ...] = ()


class TrustStore:
    """The directories that the user of ``home`` trusts, by path and content, in one file.

    Every method raises ConfigError if the file is not reliable: damaged, of a newer zot, or writable by others.
    """

    def __init__(self, home: str, *, now: Callable[[], str] = timestamp) -> None:
        self._home = home
        self._path = os.path.join(home, _FILE_NAME)
        self._now = now

    def is_trusted(self, directory: str, data_patterns: Sequence[str] = ()) -> bool:
        """True if ``directory`` was trusted and nothing but its data has changed since.

        A directory that can no longer be checked is not trusted.
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
        with directory_lock(self._home):
            self._write({**self._read(), where: entry})
        return entry

    def untrust(self, directory: str) -> bool:
        """Revoke trust in ``directory``, which need not exist; False if it was not trusted."""
        with directory_lock(self._home):
            known = self._read()
            entry = known.pop(os.path.realpath(directory), None)
            if entry is not None:
                self._write(known)
        return entry is not None

    def entries(self) -> tuple[Trusted, ...]:
        """Return the trusted directories, sorted, whether or not they have changed since."""
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
    """Raise ConfigError if another user could have written there."""
    if about.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path} belongs to another user, so it cannot say what you trust")
    is_sticky = (
        stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX
    )  # other users cannot replace our files there
    if about.st_mode & _OTHERS_MAY_WRITE and not is_sticky:
        raise ConfigError(f"{path} can be changed by others, so it cannot say what you trust; try: chmod go-w {path}")
