"""Who may come in: the tokens in a file that only its owner can read."""

from __future__ import annotations

import base64
import hmac
import logging
import os
import re
import stat
from collections.abc import Mapping

from zot.errors import ConfigError
from zot.private import make_directory

log = logging.getLogger("zot")

_BYTES = 32
#: Whose token it is that has no name.
_NAMELESS = "default"
#: What can stand in a header and in the name of a subprotocol, and is too long to be guessed.
_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{32,256}")
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_FILE_BYTES = 1 << 20


class Tokens:
    """The tokens of one file: one on each line, alone or as `name:token`. What the file says now is what counts."""

    def __init__(self, path: str) -> None:
        """Read the file; one that does not exist is made, with one token. Raise ConfigError."""
        self.path = path
        self._seen: tuple[int, ...] = ()
        self._tokens: Mapping[str, bytes] = {}
        #: What is wrong with the file, as it was told.
        self._told = ""
        self._refresh()

    def bearer(self, token: str) -> str | None:
        """Return whose token it is; None if it is nobody's. Takes as long for one as for another."""
        try:
            self._refresh()
        except ConfigError as problem:  # What cannot be read admits nobody.
            self._tell(str(problem))
            return None
        self._tell("")
        given = token.encode("utf-8", "surrogatepass")
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, given):
                found = name
        return found

    def first(self) -> str:
        """Return the token of the first line, for whoever may read the file anyway."""
        return next(iter(self._tokens.values())).decode()

    def _tell(self, problem: str) -> None:
        """Log what is wrong with the file, once: those who are kept out are told nothing of it."""
        if problem == self._told:
            return
        self._told = problem
        if problem:
            log.warning("%s; until that is mended, no token admits anybody", problem)
        else:
            log.warning("%s: it can be read again, and its tokens count", self.path)

    def _refresh(self) -> None:
        try:
            seen = _signature(os.stat(self.path))
        except FileNotFoundError:
            _make(self.path)
            seen = _signature(os.stat(self.path))
        except OSError as problem:
            raise ConfigError(f"{self.path}: {problem.strerror}") from None
        if seen != self._seen:
            self._tokens = {}  # Until it has been read again, nobody is known.
            self._tokens = _read(self.path)
            self._seen = seen


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


def _make(path: str) -> None:
    """Make the file, whole, with a token that nobody knows."""
    token = base64.urlsafe_b64encode(os.urandom(_BYTES)).rstrip(b"=")
    beside = f"{path}.{os.urandom(4).hex()}.new"
    try:
        make_directory(os.path.dirname(path))
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)  # Whatever the umask.
            os.write(descriptor, token + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(beside, path)
    except OSError as problem:
        raise ConfigError(f"{path}: no token can be made: {problem.strerror}") from None


def _read(path: str) -> Mapping[str, bytes]:
    """Return the tokens by the names of their bearers. Raise ConfigError."""
    try:
        with open(path, "rb", opener=_opened) as file:
            status = os.fstat(file.fileno())
            content = file.read(_MAX_FILE_BYTES)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: is no file")
    if status.st_mode & _OTHERS or status.st_uid != os.geteuid():
        raise ConfigError(f"{path}: others can read it, or it is theirs: it must be yours, with the mode 600")
    tokens: dict[str, bytes] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, token = text.rpartition(":")
        name = name or _NAMELESS
        if not _TOKEN.fullmatch(token) or not _NAME.fullmatch(name) or name in tokens:  # The line is a secret.
            raise ConfigError(f"{path}:{number}: expected a token of 32 to 256 letters, digits and _.~-, or name:token")
        tokens[name] = token.encode()
    if not tokens:
        raise ConfigError(f"{path}: there is no token in it; remove it, and one is made")
    return tokens


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
