"""The daemon's token file. Errors never quote a token."""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Mapping

from zot.errors import ConfigError
from zot.files import is_there, make_directory

#: Consequence of an unreadable file or an invalid line.
VOID = "until that is mended, no token admits anybody"

_BYTES = 32
#: The name of a token without one.
_NAMELESS = "default"
#: Valid in a header and as a subprotocol's name, and too long to guess.
_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{32,256}")
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_FILE_BYTES = 1 << 20


def path_in(data_dir: str) -> str:
    """Return the path of a daemon's token file."""
    return os.path.join(data_dir, "token")


def names_in(path: str) -> tuple[str, ...] | None:
    """Return the names of the tokens in a file; None if it does not exist. Raise ConfigError, with VOID."""
    if not is_there(path):
        return None
    try:
        return (*read(path),)
    except ConfigError as problem:
        raise ConfigError(f"{problem}; {VOID}") from None


def make(path: str) -> None:
    """Create the file atomically, with a random token. Raise ConfigError."""
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


def read(path: str) -> Mapping[str, bytes]:
    """Return the tokens by name. Raise ConfigError."""
    try:
        with open(path, "rb", opener=_opened) as file:
            status = os.fstat(file.fileno())
            content = file.read(_MAX_FILE_BYTES)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}; it must be a file of yours, with the mode 600") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: is no file; remove it, and one is made")
    if status.st_mode & _OTHERS or status.st_uid != os.geteuid():
        raise ConfigError(f"{path}: others can read it, or it is theirs: it must be yours, with the mode 600")
    tokens: dict[str, bytes] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, token = text.rpartition(":")
        name = name or _NAMELESS
        if (
            not _TOKEN.fullmatch(token) or not _NAME.fullmatch(name) or name in tokens
        ):  # Not quoted: the line is a secret.
            raise ConfigError(f"{path}:{number}: expected a token of 32 to 256 letters, digits and _.~-, or name:token")
        tokens[name] = token.encode()
    if not tokens:
        raise ConfigError(f"{path}: there is no token in it; remove it, and one is made")
    return tokens


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
