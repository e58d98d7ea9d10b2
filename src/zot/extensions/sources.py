"""Launch of extensions: command line, environment, directories and deadlines."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from zot.config.trust import copy_hashed
from zot.errors import UserError
from zot.extensions.confinement import Confinement, ExtensionPlace, NoSandbox, environment
from zot.extensions.manifest import Manifest, changeable, command_line, data_directories, load, program
from zot.extensions.peer import ExtensionDeadlines, ExtensionPeer
from zot.extensions.peer_connection import ExtensionProcess, OnSendFailed, spawn_extension
from zot.extensions.permissions import LACKING
from zot.files import make_directory
from zot.tools.process import Child, Processes, Streams
from zot.tools.sandbox import ConfinedCommand
from zot.wire import extension as wire

#: Snapshots that were not started for so long are removed when another one of the same extension is made.
_KEPT_S: Final = 30 * 24 * 3600.0
_ORIGIN_DIGITS: Final = 16
_CONTENT_DIGITS: Final = 40


class Snapshot:
    """The copy of the extension in ``directory`` whose content has this ``fingerprint``, in zot's ``home``."""

    def __init__(self, home: str, directory: str, fingerprint: str) -> None:
        real = os.path.realpath(directory)
        self._directory = directory
        self._fingerprint = fingerprint
        self._origin = hashlib.sha256(os.fsencode(real)).hexdigest()[:_ORIGIN_DIGITS]
        self._place = os.path.join(os.path.abspath(home), "snapshots")
        content = fingerprint.rpartition(":")[2][:_CONTENT_DIGITS]
        #: The directory to run from.
        self.path = os.path.join(self._place, f"{self._origin}-{content}")
        #: The directory of its data directories, which outlives a change of its content.
        self.data = os.path.join(os.path.abspath(home), "extension-data", f"{os.path.basename(real)}-{self._origin}")

    def make(self, manifest: Manifest) -> None:
        """Copy the extension unless that was done before, and create its data directories.

        Raise UserError if its content is not the one that was trusted.
        """
        try:
            for name in data_directories(manifest):
                make_directory(os.path.join(self.data, name))
            if not os.path.isdir(self.path):
                self._copy(manifest)
                self._remove_old()
            os.utime(self.path)
        except OSError as problem:
            raise UserError(f"{problem.filename or self.path}: {problem.strerror}") from None

    def _copy(self, manifest: Manifest) -> None:
        copy = f"{self.path}.{os.urandom(4).hex()}"
        make_directory(copy)
        try:
            if copy_hashed(self._directory, changeable(manifest, self._directory), copy) != self._fingerprint:
                raise UserError(_changed(manifest))
            if load(copy) != manifest:
                raise UserError(_changed(manifest))
            names = data_directories(manifest)
            for name in names:
                if any(name.startswith(f"{other}/") for other in names):
                    continue  # It is in another one.
                link = os.path.join(copy, name)
                make_directory(os.path.dirname(link))
                os.symlink(os.path.join(self.data, name), link)
            with suppress(OSError):  # another process was faster, with the same content
                os.rename(copy, self.path)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _remove_old(self) -> None:
        for entry in os.scandir(self._place):
            is_old = entry.stat(follow_symlinks=False).st_mtime < time.time() - _KEPT_S
            if entry.name.startswith(f"{self._origin}-") and is_old:
                shutil.rmtree(entry.path, ignore_errors=True)


def _changed(manifest: Manifest) -> str:
    return f"its files have changed since they were trusted; look at them, then: zot ext trust {manifest.name}"


class LaunchSettings(NamedTuple):
    """Common settings of a session's extensions."""

    processes: Callable[[], Processes]
    env: Mapping[str, str]
    home: str | None
    provider: str
    model: str
    cwd: str
    zot_version: str
    deadlines: ExtensionDeadlines
    confinement: Confinement
    #: Run extensions that cannot be confined anyway.
    unsandboxed: bool
    #: zot's own home, for snapshots of trusted extensions.
    zot_home: str | None = None
    #: True if `zot ext logs` finds the logs: they are in zot's home, not in a daemon's directory.
    logs_are_home: bool = True


def acknowledgement(around: LaunchSettings, *, directory: str, data: str) -> wire.HelloAck:
    """Return the answer to an extension's hello."""
    return wire.HelloAck(
        wire.PROTOCOL_VERSION, around.zot_version, around.provider, around.model, around.cwd, directory, data
    )


class ProgramSource(NamedTuple):
    """Start of the extension in ``directory``; an `Origin`.

    With ``broken`` set, `open` raises it as a UserError. With a ``fingerprint``, it runs from a `Snapshot` of the
    content that was trusted, at every start.
    """

    manifest: Manifest
    directory: str
    around: LaunchSettings
    broken: str = ""
    fingerprint: str = ""

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def returns(self) -> bool:
        return True

    def guarded(self) -> frozenset[wire.Intercepted]:
        """Return the events blocked until the extension has subscribed for the first time."""
        return frozenset(self.manifest.intercept) if self.manifest.on_failure == "block" else frozenset()

    def peer(self, closed: frozenset[wire.Intercepted], *, now: float) -> ExtensionPeer:
        """Return the peer of a new connection; ``closed`` events are blocked until it has subscribed."""
        ack = acknowledgement(self.around, directory=self._code, data=self._data_directory())
        return ExtensionPeer(
            self.manifest.name,
            ack,
            now=now,
            deadlines=self.around.deadlines,
            closed=closed,
            fails_closed=self.manifest.on_failure == "block",
            permissions=self.manifest.permissions,
        )

    async def open(self, errors: int, note: Callable[[str], None], deaf: OnSendFailed) -> ExtensionProcess:
        """Start it within its permissions; call ``note`` with warnings. Raise ValueError or UserError."""
        if self.broken:
            raise UserError(self.broken)
        if (snapshot := self._snapshot) is not None:
            await asyncio.to_thread(snapshot.make, self.manifest)
        permissions = self.manifest.permissions
        command = ConfinedCommand([*command_line(self.manifest, self._code)], b"")
        advice = ""
        if permissions is not None:
            try:
                data = None if snapshot is None else snapshot.data
                place = ExtensionPlace(self._code, self.directory, data)
                command = await self.around.confinement.confine(command.argv, place, self.manifest, permissions)
                advice = LACKING
            except NoSandbox as problem:
                if not self.around.unsandboxed:
                    raise
                note(f"runs without a sandbox: {problem}")
        grace_s = self.around.deadlines.terminate_s
        return await spawn_extension(
            lambda streams: self._spawn(command, streams), errors, deaf, grace_s=grace_s, advice=advice
        )

    async def _spawn(self, command: ConfinedCommand, streams: Streams) -> Child:
        env = environment(self.around.env, self.manifest.permissions)
        try:
            return await command.spawn(self.around.processes(), cwd=self._code, env=env, streams=streams)
        except OSError as problem:
            raise UserError(f"{problem}{self._advice(program(self.manifest, self._code), problem)}") from None

    @property
    def _snapshot(self) -> Snapshot | None:
        """The copy to run; None if it runs where it is."""
        home = self.around.zot_home
        return Snapshot(home, self.directory, self.fingerprint) if self.fingerprint and home is not None else None

    @property
    def _code(self) -> str:
        """The directory that it runs from."""
        snapshot = self._snapshot
        return self.directory if snapshot is None else snapshot.path

    def _advice(self, itself: str, problem: OSError) -> str:
        """Return advice on a failed start, "" if there is none; begins with a separator."""
        if isinstance(problem, PermissionError) and os.path.isfile(itself) and not os.access(itself, os.X_OK):
            return f"; try: chmod +x {shlex.quote(itself)}"
        if isinstance(problem, FileNotFoundError) and " " in self.manifest.exec and not os.path.exists(itself):
            return "; `exec` is the program alone, what follows it belongs in `args`"
        return ""

    def _data_directory(self) -> str:
        """Return its data directory: its own, or the first of its data directories where only those can be written."""
        snapshot, names = self._snapshot, data_directories(self.manifest)
        if snapshot is not None:
            return os.path.join(snapshot.data, *names[:1])
        return os.path.join(self.directory, *([] if self.manifest.permissions is None else names[:1]))
