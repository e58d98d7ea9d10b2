"""`$ZOT_HOME/auth.json`: the keys that `zot login` stored, and commands that print a key."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import partial

import msgspec

from zot.encoding import thread_safe_type
from zot.errors import ConfigError, MalformedFile
from zot.files import decoded, directory_lock, is_there, load, replace_file

FILE_NAME = "auth.json"
_OTHERS = 0o077
_MAX_BYTES = 1024 * 1024


class AuthEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored credential of one provider. A key wins over a command.

    It is valid only for the server at ``base_url``; without one, for the vendor's own.
    """

    key: str = ""
    command: str = ""
    base_url: str = ""

    def __repr__(self) -> str:
        """Name only the kind of credential, never its value."""
        return f"Entry({'key' if self.key else 'command' if self.command else 'empty'})"


def stored(home: str, provider: str) -> AuthEntry | None:
    """Return the credential of ``provider``. Raise ConfigError if the file is damaged or readable by others."""
    raw = read_entries(path_in(home)).get(provider)
    return None if raw is None else _entry(home, provider, raw)


def check(home: str) -> tuple[str, ...] | None:
    """Return the providers with an entry; None without the file. Raise ConfigError as `stored` does."""
    path = path_in(home)
    return tuple(read_entries(path)) if is_there(path) else None


def addresses(home: str) -> dict[str, str]:
    """Return the providers with a usable entry, and its ``base_url``. Raise ConfigError as `stored` does."""
    found = {}
    for provider, raw in read_entries(path_in(home)).items():
        try:
            found[provider] = _entry(home, provider, raw).base_url
        except ConfigError:
            continue
    return found


def store(home: str, provider: str, entry: AuthEntry) -> None:
    """Store a provider's entry, replacing its old one; keep all others. Raise ConfigError."""
    with directory_lock(home):
        write_entries(path_in(home), {**read_entries(path_in(home)), provider: msgspec.Raw(msgspec.json.encode(entry))})


def remove(home: str, provider: str) -> bool:
    """Remove the entry of ``provider``; False if there was none. Raise ConfigError."""
    if not is_there(path_in(home)):
        return False

    with directory_lock(home):
        entries = read_entries(path_in(home))
        if entries.pop(provider, None) is None:
            return False
        write_entries(path_in(home), entries)
    return True


def path_in(home: str) -> str:
    """Return the path of the file, which may not exist."""
    return os.path.join(home, FILE_NAME)


def read_entries(path: str) -> dict[str, msgspec.Raw]:
    """Return the raw entries of a private file: fields of a newer zot must survive a change. Raise ConfigError."""
    try:
        return load(path, _entries, check=partial(_check_private, path), max_bytes=_MAX_BYTES)
    except FileNotFoundError:
        return {}
    except MalformedFile:
        # Without the decoder's reason, which might quote part of a key.
        raise ConfigError(f'{path} is damaged: it must be like {{"anthropic": {{"key": "..."}}}}') from None


def _entries(data: bytes) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(data or b"{}", type=dict[str, msgspec.Raw])


def _entry(home: str, provider: str, raw: msgspec.Raw) -> AuthEntry:
    try:
        entry = decoded(bytes(raw), _stored_entry, path_in(home))
    except MalformedFile:
        entry = AuthEntry()
    if not (entry.key or entry.command):
        raise ConfigError(
            f'{path_in(home)}: the entry for {provider} has neither "key" nor "command"; try: zot login {provider}'
        )
    return entry


def _stored_entry(data: bytes) -> AuthEntry:
    return msgspec.json.decode(data, type=thread_safe_type(AuthEntry))


def _check_private(path: str, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise ConfigError(f"{path} is not a file, so zot reads no key from it")
    if about.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user, so zot reads no key from it")
    if about.st_mode & _OTHERS:
        raise ConfigError(
            f"{path} is open to others (mode {stat.S_IMODE(about.st_mode):04o}), so zot reads no key from it; "
            f"try: chmod 600 {path}"
        )


def write_entries(path: str, entries: Mapping[str, msgspec.Raw]) -> None:
    """Replace a private file. Raise ConfigError."""
    replace_file(path, msgspec.json.format(msgspec.json.encode(entries), indent=2) + b"\n")
