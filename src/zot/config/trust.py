"""One value for the whole content of a directory, so that a change of what may run is noticed.

Counts: every file by its path, its executable bit and its bytes; every symbolic link by its target and, if that is a
file, by the bytes behind it. Does not count: data, which its owner may change while it runs.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from zot.errors import UserError
from zot.files import slices

#: What an extension may change beside its code. The last pattern that matches decides, ``!`` means "not data".
DEFAULT_DATA = ("data/**", "*.db*", "*.log", "*.json", "!extension.json", "!package.json", "!tsconfig*.json")
MAX_FILES = 10_000
MAX_BYTES = 256 * 1024 * 1024

#: They say what runs and what is data, so no pattern makes them data.
_NEVER_DATA = frozenset({"extension.json", "SKILL.md"})


def fingerprint(directory: str, data_patterns: Sequence[str] = ()) -> str:
    """Return the fingerprint of ``directory``, whatever its own name. Raise UserError if it cannot be taken.

    A pattern with ``/**`` at its end is a directory of data; one with another ``/`` matches a whole relative path;
    any other a name at any depth. Refused are directories too large to be looked at on every start, links to
    directories outside, and what is neither file nor directory nor link.
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
        """Yield the relative paths of what counts, in no order."""
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
        """Yield what the fingerprint says of one path: always four parts, so that no two directories look the same."""
        full = os.path.join(self._root, path)
        mode = os.lstat(full).st_mode
        yield os.fsencode(path)
        if stat.S_ISLNK(mode):
            yield b"link"
            yield os.fsencode(os.readlink(full))
            yield self._behind(full)
        elif stat.S_ISREG(mode):
            yield b"file"
            yield b"executable" if mode & 0o111 else b""
            yield self._digest(full)
        else:
            raise UserError(f"{full} is neither a file nor a directory")

    def _behind(self, link: str) -> bytes:
        try:
            mode = os.stat(link).st_mode
        except OSError:  # it leads nowhere; once it does, the fingerprint is another
            return b""
        if stat.S_ISDIR(mode) and not f"{os.path.realpath(link)}/".startswith(f"{self._root}/"):
            raise UserError(f"{link} leads to a directory outside, which cannot be checked")
        return self._digest(link) if stat.S_ISREG(mode) else b""

    def _digest(self, path: str) -> bytes:
        digest = hashlib.sha256()
        for data in slices(path):
            self._bytes += len(data)
            if self._bytes > MAX_BYTES:
                raise UserError(f"{self._root} has more than {MAX_BYTES} bytes, too many to be checked")
            digest.update(data)
        return digest.digest()
