"""Private paths: every directory, socket and file that zot itself resolves.

The one list that sandboxes hide and that file tools refuse to strangers and under a lock. A path that is not in it can
be reached, so everything that zot keeps belongs here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from zot.config.config import Config, zot_home
from zot.config.paths import given_config_dir, given_data_dir
from zot.files import make_directory, open_private

#: Names of zot's files in its home, its configuration directory and its data directory.
OWN_NAMES: Final = (
    "auth.json", "trust.json", "config.toml", "models.json", "SYSTEM.md",
    "journal.db", "journal.db-wal", "journal.db-shm", "journal.db.lock",
    "daemon.sock", "daemon.sock.lock", "token", "tokens.json", "pairings.json", "dashboard.html",
    "audit.jsonl",
    "data", "logs", "spill", "recordings", "extensions", "extension-data", "snapshots", "skills", "mcp-cache",
    "repositories",
)  # fmt: skip
#: Files that SQLite and zot keep beside a journal.
_BESIDE_JOURNAL: Final = ("", "-wal", "-shm", "-journal", ".lock")
_BESIDE_SOCKET: Final = ("", ".lock")
#: The kernel's files: memory, descriptors and environment of processes, zot's among them, and devices.
KERNEL: Final = ("/proc", "/sys", "/dev")
_RECORDED: Final = "recording of --record"


class PrivatePath(NamedTuple):
    """A private path, absolute, and its purpose. A directory is private with all its content.

    ``around`` is the private directory in which the session works, if this is one of its known files. A file that
    ``stays`` exists before a sandbox starts, and zot never replaces it. Others come and go.
    """

    path: str
    purpose: str
    is_directory: bool = True
    around: str = ""
    stays: bool = False

    @property
    def hidden(self) -> str:
        """The real path that a sandbox must cover: one file cannot be covered before it exists, its directory can.

        A cover on a file is lost with that file. The next one of its name would be seen.
        """
        real = os.path.realpath(self.path)
        return real if self.is_directory or self.stays else os.path.dirname(real)


def private_paths(config: Config, cwd: str) -> tuple[PrivatePath, ...]:
    """Return the private paths of a session in ``cwd``, whether or not they exist.

    A directory that contains ``cwd`` is listed by its known content: the session works there.
    """
    here = os.path.realpath(cwd)
    found: dict[str, PrivatePath] = {}
    for one in _resolved(config):
        for each in _parts(one, here):
            found.setdefault(each.path, each)
    return tuple(found.values())


def make_missing(private: Sequence[PrivatePath], shown: Sequence[str]) -> None:
    """Create the missing private paths in the real directories ``shown``, which a sandbox shows.

    A mount needs something to cover. What a daemon, or the program in the sandbox, created later would be seen.
    """
    for one in private:
        real = one.hidden
        if any(real.startswith(f"{place}/") for place in shown):
            with suppress(OSError):  # If zot cannot create it, the program in the sandbox cannot either.
                if not one.stays:
                    make_directory(real)
                elif one.purpose == _RECORDED and not os.path.lexists(real):
                    os.close(open_private(real, os.O_WRONLY))


def _parts(one: PrivatePath, here: str) -> Iterator[PrivatePath]:
    real = os.path.realpath(one.path)
    if one.is_directory and (here == real or here.startswith(os.path.join(real, ""))):
        for name in OWN_NAMES:
            path = os.path.join(one.path, name)
            if not here.startswith(os.path.realpath(path)):
                is_directory = "." not in name and name != "token"
                yield PrivatePath(path, f"{one.purpose}: {name}", is_directory, around=real)
    else:
        yield one


def _resolved(config: Config) -> Iterator[PrivatePath]:
    env = config.environment
    for path, purpose in (*_homes(env), *_daemon_directories(env)):
        yield PrivatePath(os.path.abspath(path), purpose)
    if config.data is not None:
        yield PrivatePath(os.path.abspath(config.data), "data directory")
    for path in config.private:
        yield PrivatePath(os.path.abspath(path), "of this daemon", is_directory=os.path.isdir(path))
    if socket := env.get("ZEROCLAW_SOCKET"):
        yield from _beside(socket, _BESIDE_SOCKET, "socket by ZEROCLAW_SOCKET")
    if config.journal is not None and "://" not in config.journal:
        yield from _beside(config.journal, _BESIDE_JOURNAL, "journal")
    for recording, purpose in ((config.record, _RECORDED), (config.replay, "recording of --replay")):
        if recording is not None:
            yield PrivatePath(os.path.abspath(recording), purpose, is_directory=False, stays=True)


def _homes(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield zot's home, and those of other settings: another zot of this user may run there."""
    if home := zot_home(env):
        yield home, "zot's home"
    if state := env.get("XDG_STATE_HOME"):
        yield os.path.join(state, "zot"), "zot's home by XDG_STATE_HOME"
    if user := env.get("HOME"):
        yield zot_home({"HOME": user}) or "", "zot's default home"


def _daemon_directories(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if user := env.get("HOME"):
        yield os.path.join(user, ".zeroclaw"), "the daemon's default directory"
    if config_dir := given_config_dir(env, None):
        yield config_dir, "the daemon's directory by ZEROCLAW_CONFIG_DIR"
    if data_dir := given_data_dir(env):
        yield data_dir, "the daemon's data by ZEROCLAW_DATA_DIR"


def _beside(path: str, endings: tuple[str, ...], purpose: str) -> Iterator[PrivatePath]:
    for ending in endings:
        yield PrivatePath(os.path.abspath(f"{path}{ending}"), purpose, is_directory=False)
