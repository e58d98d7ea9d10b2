"""Paths of the daemon: configuration, data, socket, and the Windows pipe name that clients compute."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType

import msgspec

from zot.errors import ConfigError, UsageError

#: Longest socket path in bytes; shorter on other systems, such as macOS.
_MAX_PATH_BYTES = {"linux": 107}
_MAX_PATH_BYTES_ELSEWHERE = 103
_DATA, _JOURNAL = "data", "journal.db"
#: A directory in the root of every sandbox, which is read-only: the daemon knows by it who calls.
SANDBOX_MARK = "/.zot-sandbox"
_SHORTER = "name a shorter one with --socket or ZEROCLAW_SOCKET"

_WORD = (1 << 64) - 1
_DRIVE = rb"(\\\\\?\\)?([A-Za-z]):"
_SHARE = rb"\\\\([^\\/?.][^\\/]*)[\\/]([^\\/]+)"
#: Rust's numbers for kinds of path prefixes.
_IS_VERBATIM_DRIVE, _IS_SHARE, _IS_DRIVE = 2, 4, 5


class DaemonPaths(msgspec.Struct, frozen=True):
    """Paths of a daemon.

    ``socket`` is the path of its socket, or the name of its pipe on Windows. ``config_dir`` is the directory of its
    `config.toml` and ``journal`` the file of its sessions: None is the usual one, which all commands share.
    """

    socket: str
    data_dir: str
    config_dir: str | None = None
    journal: str | None = None

    @property
    def private(self) -> tuple[str, ...]:
        """The paths that no tool may reach."""
        known = [self.data_dir]
        if self.socket:  # An embedded daemon has none.
            known += [self.socket, f"{self.socket}.lock"]
        if self.config_dir is not None:
            known.append(os.path.join(self.config_dir, "config.toml"))
        return tuple(known)

    @property
    def logs(self) -> str:
        """The directory of the logs."""
        return os.path.join(self.data_dir, "logs")


def locate(
    env: Mapping[str, str], *, socket: str | None = None, config_dir: str | None = None, platform: str = sys.platform
) -> DaemonPaths:
    """Return the paths of this environment's daemon; ``socket`` and ``config_dir`` are the flags' values.

    Raise ConfigError if no directory is known, or the socket's path is longer than the system allows.
    """
    paths = _paths(platform)
    given = given_config_dir(env, config_dir, paths)
    data_dir = _absolute(paths, _data_dir(env, given, paths))
    own = given is not None or given_data_dir(env, paths) is not None
    return DaemonPaths(
        socket=find_socket(env, socket=socket, config_dir=config_dir, platform=platform),
        data_dir=data_dir,
        config_dir=None if given is None else _absolute(paths, given),
        journal=paths.join(data_dir, _JOURNAL) if own else None,
    )


def journal_in(config_dir: str) -> str:
    """Return the journal of a daemon with this configuration directory."""
    return str(posixpath.join(_absolute(posixpath, config_dir), _DATA, _JOURNAL))


def find_socket(
    env: Mapping[str, str], *, socket: str | None = None, config_dir: str | None = None, platform: str = sys.platform
) -> str:
    """Return the socket's path alone, which needs no home if it is given. Raise ConfigError as `locate` does."""
    if socket == "":
        raise UsageError("--socket needs a path, and this one is empty")
    if named := socket or env.get("ZEROCLAW_SOCKET"):
        return _usable(named, platform, "--socket" if socket else "ZEROCLAW_SOCKET")
    paths = _paths(platform)
    data_dir = _absolute(paths, _data_dir(env, given_config_dir(env, config_dir, paths), paths))
    if platform == "win32":
        return pipe_name(data_dir)
    return _usable(paths.join(data_dir, "daemon.sock"), platform, "the daemon's socket")


def given_config_dir(env: Mapping[str, str], flag: str | None, paths: ModuleType = posixpath) -> str | None:
    """Return the directory of the daemon's `config.toml` if ``flag`` or the environment names one."""
    if flag == "":
        raise UsageError("--config-dir needs a directory, and this one is empty")
    return flag or _directory(env, "ZEROCLAW_CONFIG_DIR", paths)


def given_data_dir(env: Mapping[str, str], paths: ModuleType = posixpath) -> str | None:
    """Return the daemon's data directory if the environment names one."""
    return _directory(env, "ZEROCLAW_DATA_DIR", paths)


def _data_dir(env: Mapping[str, str], config_dir: str | None, paths: ModuleType) -> str:
    if config_dir is None and (data_dir := given_data_dir(env, paths)):
        return data_dir
    return str(paths.join(config_dir or env.get("ZOT_HOME") or _expanded(env, "~/.zeroclaw", paths), _DATA))


def _directory(env: Mapping[str, str], name: str, paths: ModuleType) -> str | None:
    """Return a directory named in the environment; surrounding blanks are ignored, as in other programs."""
    named = env.get(name, "").strip()
    return _expanded(env, named, paths) if named else None


def _expanded(env: Mapping[str, str], path: str, paths: ModuleType) -> str:
    if path != "~" and not path.startswith("~/"):
        return path
    home = env.get("HOME" if paths is posixpath else "USERPROFILE")
    if not home:
        raise ConfigError("no home directory to find the daemon in: set HOME, or use --config-dir or --socket")
    return str(paths.join(home, path[2:])) if path[2:] else home


def _usable(path: str, platform: str, whose: str) -> str:
    """Return ``path`` if a socket can be there. Raise ConfigError."""
    if platform == "win32":
        return path
    if "\0" in path or path.endswith("/"):
        raise ConfigError(f"{whose}: {path!r} is not the name of a file")
    limit = _MAX_PATH_BYTES.get(platform, _MAX_PATH_BYTES_ELSEWHERE)
    if (size := len(os.fsencode(path))) > limit:
        raise ConfigError(
            f"{whose}: {path} has {size} bytes, and the path of a socket may have {limit} at most: {_SHORTER}"
        )
    return path


def _absolute(paths: ModuleType, path: str) -> str:
    """Return an absolute path without resolving links."""
    if paths.isabs(path):
        return path
    try:
        return str(paths.join(os.getcwd(), path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: the current directory no longer exists") from None


def _paths(platform: str) -> ModuleType:
    if platform != "win32":
        return posixpath
    import ntpath  # Imported lazily: only clients on Windows need it.

    return ntpath


def pipe_name(data_dir: str) -> str:
    """Return the pipe name of a data directory."""
    beginning, rest = _beginning(data_dir.encode("utf-8", "surrogatepass"))
    number = path_hash(rest.replace(b"\\", b"/").split(b"/"), beginning)
    return rf"\\.\pipe\zeroclaw-{number:x}"


def path_hash(components: Iterable[bytes], beginning: bytes = b"") -> int:
    """Return Rust's default hash of a path: its prefix, such as a drive, and its components."""
    fed, word = [beginning], 0
    for component in components:
        if component in (b"", b"."):
            continue
        fed.append(component)
        word = _turned((word + len(component)) & _WORD, 62)
    return siphash13(b"".join(fed) + word.to_bytes(8, "little"))


def siphash13(data: bytes) -> int:
    """Return SipHash-1-3 of ``data`` with zero keys."""
    state = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
    whole = len(data) & ~7
    last = data[whole:].ljust(7, b"\0") + bytes([len(data) & 0xFF])
    for piece in (*(data[at : at + 8] for at in range(0, whole, 8)), last):
        word = int.from_bytes(piece, "little")
        a, b, c, d = state
        a, b, c, d = _mixed(a, b, c, d ^ word)
        state = (a ^ word, b, c, d)
    a, b, c, d = state
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = _mixed(a, b, c, d)
    return a ^ b ^ c ^ d


def _mixed(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = (a + b) & _WORD
    b = _turned(b, 13) ^ a
    a = _turned(a, 32)
    c = (c + d) & _WORD
    d = _turned(d, 16) ^ c
    a = (a + d) & _WORD
    d = _turned(d, 21) ^ a
    c = (c + b) & _WORD
    b = _turned(b, 17) ^ c
    return a, b, _turned(c, 32), d


def _turned(word: int, left: int) -> int:
    return (word << left | word >> (64 - left)) & _WORD


def _beginning(path: bytes) -> tuple[bytes, bytes]:
    """Return the hash input of a path's drive or share, and the rest of the path."""
    if match := re.match(_DRIVE, path):
        kind = _IS_VERBATIM_DRIVE if match[1] else _IS_DRIVE
        return kind.to_bytes(8, "little") + match[2].upper(), path[match.end() :]
    if match := re.match(_SHARE, path):
        names = (len(name).to_bytes(8, "little") + name for name in match.groups())
        return _IS_SHARE.to_bytes(8, "little") + b"".join(names), path[match.end() :]
    return b"", path
