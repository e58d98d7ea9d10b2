"""Launch of extensions: command line, environment, directories and deadlines."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Callable, Mapping
from typing import NamedTuple

from zot.errors import UserError
from zot.extensions.confinement import Confinement, ExtensionPlace, NoSandbox, environment
from zot.extensions.connection import ExtensionProcess, OnSendFailed, spawn_extension
from zot.extensions.manifest import Manifest, command_line, data_directories, program
from zot.extensions.peer import ExtensionDeadlines, ExtensionPeer
from zot.extensions.permissions import LACKING
from zot.extensions.snapshot import Snapshot
from zot.tools.process import Child, Command, Processes
from zot.wire import extension as wire


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
        env = environment(self.around.env, permissions)
        command = Command(command_line(self.manifest, self._code), self._code, env)
        advice = ""
        if permissions is not None:
            try:
                data = None if snapshot is None else snapshot.data
                place = ExtensionPlace(self._code, self.directory, data)
                command = await self.around.confinement.confine(command, place, self.manifest, permissions)
                advice = LACKING
            except NoSandbox as problem:
                if not self.around.unsandboxed:
                    raise
                note(f"runs without a sandbox: {problem}")
        grace_s = self.around.deadlines.terminate_s
        return await spawn_extension(
            lambda streams: self._spawn(command._replace(streams=streams)), errors, deaf, grace_s=grace_s, advice=advice
        )

    async def _spawn(self, command: Command) -> Child:
        try:
            return await self.around.processes().spawn(command)
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
