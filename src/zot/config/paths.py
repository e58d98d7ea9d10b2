"""Where the daemon listens and keeps its files: the same answer for the daemon and for whoever looks for it."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Mapping
from types import ModuleType

import msgspec

from zot.errors import ConfigError, UsageError

#: How many bytes the path of a socket may have; elsewhere, as on macOS, it is fewer.
_MAX_PATH_BYTES = {"linux": 107}
_MAX_PATH_BYTES_ELSEWHERE = 103
_DATA, _JOURNAL = "data", "journal.db"
_SHORTER = "name a shorter one with --socket or ZEROCLAW_SOCKET"


class Place(msgspec.Struct, frozen=True):
    """Where a daemon is.

    ``socket`` is the path of its socket, or the name of its pipe on Windows. ``config_dir`` is the directory of its
    `config.toml` and ``journal`` the file where it keeps sessions: None is the usual one, which all commands share.
    """

    socket: str
    data_dir: str
    config_dir: str | None = None
    journal: str | None = None

    @property
    def logs(self) -> str:
        """The directory of what is written down."""
        return os.path.join(self.data_dir, "logs")


def locate(
    env: Mapping[str, str], *, socket: str | None = None, config_dir: str | None = None, platform: str = sys.platform
) -> Place:
    """Return where the daemon of this environment is; ``socket`` and ``config_dir`` are what the flags say.

    Raise ConfigError if that is nowhere, or the path of the socket is longer than the system allows.
    """
    paths = _paths(platform)
    given = given_config_dir(env, config_dir, paths)
    data_dir = _absolute(paths, _data_dir(env, given, paths))
    own = given is not None or _directory(env, "ZEROCLAW_DATA_DIR", paths) is not None
    return Place(
        socket=find_socket(env, socket=socket, config_dir=config_dir, platform=platform),
        data_dir=data_dir,
        config_dir=None if given is None else _absolute(paths, given),
        journal=paths.join(data_dir, _JOURNAL) if own else None,
    )


def journal_in(config_dir: str) -> str:
    """Return where a daemon keeps its sessions that has this directory."""
    return str(posixpath.join(_absolute(posixpath, config_dir), _DATA, _JOURNAL))


def find_socket(
    env: Mapping[str, str], *, socket: str | None = None, config_dir: str | None = None, platform: str = sys.platform
) -> str:
    """Return only where to connect to, which needs no home if it is said. Raise ConfigError as `locate` does."""
    if socket == "":
        raise UsageError("--socket needs a path, and this one is empty")
    if named := socket or env.get("ZEROCLAW_SOCKET"):
        return _usable(named, platform, "--socket" if socket else "ZEROCLAW_SOCKET")
    paths = _paths(platform)
    data_dir = _absolute(paths, _data_dir(env, given_config_dir(env, config_dir, paths), paths))
    if platform == "win32":
        from zot.config.pipe_name import pipe_name

        return pipe_name(data_dir)
    return _usable(paths.join(data_dir, "daemon.sock"), platform, "the daemon's socket")


def given_config_dir(env: Mapping[str, str], flag: str | None, paths: ModuleType = posixpath) -> str | None:
    """Return the directory of the daemon's `config.toml` if somebody names it: the ``flag``, or the environment."""
    if flag == "":
        raise UsageError("--config-dir needs a directory, and this one is empty")
    return flag or _directory(env, "ZEROCLAW_CONFIG_DIR", paths)


def _data_dir(env: Mapping[str, str], config_dir: str | None, paths: ModuleType) -> str:
    if config_dir is None and (data_dir := _directory(env, "ZEROCLAW_DATA_DIR", paths)):
        return data_dir
    return str(paths.join(config_dir or env.get("ZOT_HOME") or _expanded(env, "~/.zeroclaw", paths), _DATA))


def _directory(env: Mapping[str, str], name: str, paths: ModuleType) -> str | None:
    """Return a directory that the environment names; blanks around it do not count, as in other programs."""
    named = env.get(name, "").strip()
    return _expanded(env, named, paths) if named else None


def _expanded(env: Mapping[str, str], path: str, paths: ModuleType) -> str:
    if path != "~" and not path.startswith("~/"):
        return path
    home = env.get("HOME" if paths is posixpath else "USERPROFILE")
    if not home:
        raise ConfigError(
            "where the daemon is cannot be told without a home: set HOME, or say --config-dir or --socket"
        )
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
    """Return a path that means the same in any directory, otherwise as it is: where links lead is not ours to guess."""
    if paths.isabs(path):
        return path
    try:
        return str(paths.join(os.getcwd(), path))
    except FileNotFoundError:
        raise ConfigError(f"{path}: the current directory no longer exists") from None


def _paths(platform: str) -> ModuleType:
    if platform != "win32":
        return posixpath
    import ntpath

    return ntpath
