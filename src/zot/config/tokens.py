"""The daemon's tokens. Errors never quote a token.

The file `token` holds tokens in clear text, one per line, which have all roles. `tokens.json` holds the digests of
tokens with chosen roles, sessions and an end date; a token itself is shown once, when it is made.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from zot.encoding import UNREADABLE, explain, thread_safe_type
from zot.errors import ConfigError, UserError
from zot.files import directory_lock, is_there, make_directory, replace_file, write_file

#: Consequence of an unreadable file or an invalid line.
VOID = "until that is fixed, no token is accepted"

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


def scoped_path_beside(path: str) -> str:
    """Return the path of `tokens.json`, beside the token file at ``path``."""
    return os.path.join(os.path.dirname(path), "tokens.json")


class ScopedToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token with chosen roles; only the digest of it is stored.

    ``sessions`` are the ids to which it is bound, None for all. Times are in seconds since the epoch.
    """

    name: str
    digest: str
    roles: tuple[str, ...]
    created: float
    sessions: tuple[str, ...] | None = None
    expires: float | None = None


class _ScopedFile(msgspec.Struct, frozen=True):
    tokens: tuple[ScopedToken, ...] = ()


def names_in(path: str) -> tuple[str, ...] | None:
    """Return the names of all tokens; None if there is no file of them. Raise ConfigError, with VOID.

    ``path`` is that of the token file; `tokens.json` is beside it.
    """
    beside = scoped_path_beside(path)
    if not is_there(path) and not is_there(beside):
        return None
    try:
        return (*(read(path) if is_there(path) else ()), *(one.name for one in read_scoped(beside)))
    except ConfigError as problem:
        raise ConfigError(f"{problem}; {VOID}") from None


def digest_of(token: bytes) -> str:
    """Return the stored form of a token. It has 256 random bits, so a fast hash without salt is enough."""
    return sha256(token).hexdigest()


def make_scoped(
    path: str,
    name: str,
    *,
    roles: Sequence[str],
    sessions: Sequence[str] | None,
    expires: float | None,
    now: float,
) -> str:
    """Add a token to the file `tokens.json` beside the token file at ``path``; return the token.

    Raise UserError if the name is invalid or taken, ConfigError if a file cannot be read or written.
    """
    check_name(name)
    token = f"zot_{_random()}"
    made = ScopedToken(
        name,
        digest_of(token.encode()),
        (*dict.fromkeys(roles),),
        now,
        None if sessions is None else (*dict.fromkeys(sessions),),
        expires,
    )
    with directory_lock(os.path.dirname(path)):
        known = read_scoped(scoped_path_beside(path))
        if name in {one.name for one in known} or (is_there(path) and name in read(path)):
            raise UserError(f"token {name!r} exists already; revoke it, or choose another name")
        _write_scoped(path, (*known, made))
    return token


def check_name(name: str) -> None:
    """Raise UserError if a token cannot have this name."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{name!r} is not a name for a token: use 1 to 64 letters, digits and _.@-")


def revoke(path: str, name: str) -> None:
    """Remove a token from either file; ``path`` is that of the token file. Raise UserError, ConfigError."""
    with directory_lock(os.path.dirname(path)):
        known = read_scoped(scoped_path_beside(path))
        left = tuple(one for one in known if one.name != name)
        if len(left) < len(known):
            _write_scoped(path, left)
        elif is_there(path) and name in read(path):
            _remove_line(path, name)
        else:
            raise UserError(f"no token is named {name!r}; list them with: zot daemon token list")


def _remove_line(path: str, name: str) -> None:
    lines = read_private(path).decode("utf-8", "replace").split("\n")
    kept = [line for line in lines if (found := _parsed(line)) is None or found[0] != name]
    if not any(_parsed(line) for line in kept):
        os.unlink(path)  # An empty file would void all tokens; a missing one is made anew if there is no other token.
    else:
        replace_file(path, "\n".join(kept).encode())


def _write_scoped(path: str, tokens: tuple[ScopedToken, ...]) -> None:
    data = msgspec.json.format(msgspec.json.encode(_ScopedFile(tokens)), indent=2)
    replace_file(scoped_path_beside(path), data + b"\n")


def read_scoped(path: str) -> tuple[ScopedToken, ...]:
    """Return the tokens of a `tokens.json`; none if it does not exist. Raise ConfigError."""
    if not is_there(path):
        return ()
    try:
        tokens = msgspec.json.decode(read_private(path), type=thread_safe_type(_ScopedFile)).tokens
    except UNREADABLE as problem:
        raise ConfigError(f"{path}: {explain(problem)}") from None
    names = [one.name for one in tokens]
    if len({*names}) < len(names) or not all(map(_NAME.fullmatch, names)):
        raise ConfigError(f"{path}: each token needs a name of its own, of letters, digits and _.@-")
    return tokens


def make(path: str) -> None:
    """Create the file atomically, with a random token. Raise ConfigError."""
    token = _random().encode()
    try:
        make_directory(os.path.dirname(path))
        write_file(path, token + b"\n")
    except OSError as problem:
        raise ConfigError(f"{path}: no token can be made: {problem.strerror}") from None


def read(path: str) -> Mapping[str, bytes]:
    """Return the tokens of a token file by name. Raise ConfigError."""
    tokens: dict[str, bytes] = {}
    for number, line in enumerate(read_private(path).decode("utf-8", "replace").split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _parsed(line)
        if found is None or found[0] in tokens:  # Not quoted: the line is a secret.
            raise ConfigError(f"{path}:{number}: expected a token of 32 to 256 letters, digits and _.~-, or name:token")
        tokens[found[0]] = found[1].encode()
    if not tokens:
        raise ConfigError(f"{path}: it contains no token; remove it, and the daemon creates one")
    return tokens


def _parsed(line: str) -> tuple[str, str] | None:
    """Return the name and the token of a line; None if it has none."""
    name, _, token = line.strip().rpartition(":")
    name = name or _NAMELESS
    return (name, token) if _TOKEN.fullmatch(token) and _NAME.fullmatch(name) else None


def read_private(path: str) -> bytes:
    """Return the content of a file that only its owner can read. Raise ConfigError."""
    try:
        with open(path, "rb", opener=_opened) as file:
            status = os.fstat(file.fileno())
            content = file.read(_MAX_FILE_BYTES)
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}; it must be a file of yours, with the mode 600") from None
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: is not a file; remove it, and the daemon creates one")
    if status.st_mode & _OTHERS or status.st_uid != os.geteuid():
        raise ConfigError(f"{path}: others can read it: it must be your own file, with the mode 600")
    return content


def _random() -> str:
    return base64.urlsafe_b64encode(os.urandom(_BYTES)).rstrip(b"=").decode()


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
