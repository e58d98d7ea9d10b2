"""Trust by content: directories this user allowed, bound to a fingerprint of their files."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType
from typing import BinaryIO

import msgspec

from zot.encoding import decoder
from zot.errors import ConfigError, MalformedFile, UserError
from zot.files import directory_lock, load, make_directory, read_chunks, replace_file
from zot.messages import timestamp

#: Files an extension may change besides its code. The last matching pattern decides, ``!`` means "not data".
DEFAULT_DATA = ("data/**", "*.db", "*.db-*", "*.log")
MAX_FILES = 10_000
MAX_BYTES = 256 * 1024 * 1024

#: They define what runs and what is data, so no pattern makes them data.
_SKILL = "SKILL.md"
_NEVER_DATA = frozenset({"extension.json", _SKILL})

_VERSION = 1
_FILE_NAME = "trust.json"
_OTHERS_MAY_WRITE = 0o022


def fingerprint(
    directory: str, data_patterns: Sequence[str] = (), *, read: Mapping[str, bytes] = MappingProxyType({})
) -> str:
    """Return the fingerprint of ``directory``, independent of its name. Raise UserError if it cannot be computed.

    A pattern ending in ``/**`` is a directory of data; one with another ``/`` matches a whole relative path; any
    other a name at any depth. Directories too large to check on every start, links to directories outside, and
    special files are refused. Files in ``read``, by relative path, count with the content that the caller has read.
    If ``directory`` is a file, its bytes count.
    """
    if os.path.isfile(directory):
        try:
            return file_fingerprint(b"".join(read_chunks(directory, max_bytes=MAX_BYTES)))
        except OSError as problem:
            raise UserError(f"{directory}: {problem.strerror}") from None
    return _Reader(os.path.realpath(directory), data_patterns, content=read).read()


def file_fingerprint(data: bytes) -> str:
    """Return the fingerprint of a file with this content."""
    return f"sha256:{hashlib.sha256(b'file' + data).hexdigest()}"


def copy_hashed(directory: str, data_patterns: Sequence[str], destination: str) -> str:
    """Copy ``directory`` without its data to the empty ``destination``; return the fingerprint of the copy.

    Every byte is read once, for both. Links to files become files. Raise UserError as `fingerprint` does.
    """
    return _Reader(os.path.realpath(directory), data_patterns, os.path.realpath(destination)).read()


class Coverage(msgspec.Struct, frozen=True):
    """Extent of the trust in a directory: the number of files, their size, and those that count as data."""

    fingerprint: str
    files: int
    size_bytes: int
    data: tuple[str, ...]


def coverage(directory: str, data_patterns: Sequence[str] = ()) -> Coverage:
    """Return what trust in ``directory`` covers as it is now. Raise UserError as `fingerprint` does."""
    reader = _Reader(os.path.realpath(directory), data_patterns)
    found = reader.read()
    return Coverage(found, reader.hashed, reader.size, tuple(sorted(reader.data)))


class _Reader:
    def __init__(
        self,
        root: str,
        data_patterns: Sequence[str],
        copy: str | None = None,
        *,
        content: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self._root = root
        self._patterns = data_patterns
        self._copy = copy
        self._content = content
        self._count = 0
        self.hashed = 0
        self.size = 0
        #: Data that was found, relative to the directory.
        self.data: list[str] = []

    def read(self) -> str:
        try:
            total = hashlib.sha256()
            for path in sorted(self._paths(), key=os.fsencode):
                self.hashed += 1
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
                        self.data.append(f"{path}/" if is_directory else path)
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
            yield os.fsencode(target := os.readlink(full))
            yield self._target_digest(full, path, target)
        elif stat.S_ISREG(mode):
            yield b"file"
            yield b"executable" if mode & 0o111 else b""
            yield self._digest(full, path, mode)
        else:
            raise UserError(f"{full} is neither a file nor a directory")

    def _target_digest(self, link: str, path: str, target: str) -> bytes:
        try:
            mode = os.stat(link).st_mode
        except OSError:  # a dangling link; once it has a target, the fingerprint differs
            return b""
        if stat.S_ISDIR(mode) and not f"{os.path.realpath(link)}/".startswith(f"{self._root}/"):
            raise UserError(f"{link} leads to a directory outside, which cannot be checked")
        if stat.S_ISREG(mode):
            return self._digest(link, path, mode)
        if stat.S_ISDIR(mode) and self._copy is not None:
            self._link(path, target)
        return b""

    def _digest(self, full: str, path: str, mode: int) -> bytes:
        digest = hashlib.sha256()
        copy = None if self._copy is None else self._create(path, mode)
        try:
            for data in [self._content[path]] if path in self._content else read_chunks(full):
                self.size += len(data)
                if self.size > MAX_BYTES:
                    raise UserError(f"{self._root} has more than {MAX_BYTES} bytes, too many to be checked")
                digest.update(data)
                if copy is not None:
                    copy.write(data)
        finally:
            if copy is not None:
                copy.close()
        return digest.digest()

    def _create(self, path: str, mode: int) -> BinaryIO:
        """Create a file of the copy, private but for the executable bit."""
        full = self._in_copy(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return open(os.open(full, flags, 0o700 if mode & 0o111 else 0o600), "wb")

    def _link(self, path: str, target: str) -> None:
        """Create the link to a directory in the copy, leading to its copied target. Raise UserError."""
        above = os.path.dirname(path)
        named = os.path.normpath(os.path.join(self._root, above, target))
        inside = os.path.relpath(named, self._root)
        if inside.split("/")[0] == "..":
            raise UserError(f"{os.path.join(self._root, path)} leads to a directory outside, which cannot be checked")
        os.symlink(os.path.relpath(inside, above or "."), self._in_copy(path))

    def _in_copy(self, path: str) -> str:
        """Return a path in the copy, with its parent directories created. They are no links: only names are copied."""
        assert self._copy is not None
        full = os.path.join(self._copy, path)
        make_directory(os.path.dirname(full))
        return full


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

    def is_trusted(
        self,
        directory: str,
        data_patterns: Sequence[str] = (),
        *,
        read: Mapping[str, bytes] = MappingProxyType({}),
    ) -> bool:
        """True if ``directory`` was trusted and nothing but its data has changed since.

        Files in ``read`` are judged by the content that the caller has read, and will use. A directory that can no
        longer be checked is not trusted.
        """
        entry = self._read().get(os.path.realpath(directory))
        if entry is None:
            return False
        try:
            return entry.fingerprint == fingerprint(directory, data_patterns, read=read)
        except UserError:
            return False

    def is_trusted_skill(self, directory: str, content: bytes) -> bool:
        """True if the skill in ``directory`` is trusted with this ``content`` of its file, see `is_trusted`."""
        return self.is_trusted(directory, read={_SKILL: content})

    def recorded(self, directory: str) -> str:
        """Return the fingerprint with which ``directory`` was trusted; "" if it was not."""
        entry = self._read().get(os.path.realpath(directory))
        return "" if entry is None else entry.fingerprint

    def trust(self, directory: str, data_patterns: Sequence[str] = (), *, shown: str = "") -> Trusted:
        """Trust ``directory`` as it is now. Raise UserError if it cannot be checked.

        ``shown`` is the fingerprint of what the user saw: if it is another one, raise UserError and trust nothing.
        """
        where = os.path.realpath(directory)
        entry = Trusted(where, fingerprint(where, data_patterns), self._now())
        if shown and shown != entry.fingerprint:
            raise UserError(f"{where} has changed since it was shown; look at it again before you trust it")
        self._add(entry)
        return entry

    def trust_as(self, path: str, fingerprint: str) -> None:
        """Trust ``path`` with a fingerprint that the caller has computed from what the user saw."""
        self._add(Trusted(os.path.realpath(path), fingerprint, self._now()))

    def _add(self, entry: Trusted) -> None:
        with directory_lock(self._home):
            self._write({**self._read(), entry.directory: entry})

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
        raise ConfigError(f"{path} belongs to another user, so zot does not rely on it")
    is_sticky = (
        stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX
    )  # other users cannot replace our files there
    if about.st_mode & _OTHERS_MAY_WRITE and not is_sticky:
        raise ConfigError(f"{path} can be changed by others, so zot does not rely on it; try: chmod go-w {path}")
