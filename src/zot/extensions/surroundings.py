"""What extensions run in, and how one is started and talked to in it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from zot.errors import UserError
from zot.extensions.confinement import Confinement, NoSandbox, environment
from zot.extensions.deadlines import Deadlines
from zot.extensions.manifest import Manifest, data_directories, program
from zot.extensions.peer import Peer
from zot.extensions.permissions import Permissions
from zot.tools.process import Child, Processes, Streams
from zot.wire import extension as wire


class Surroundings(NamedTuple):
    """What the extensions of a session have in common."""

    processes: Callable[[], Processes]
    env: Mapping[str, str]
    home: str | None
    provider: str
    model: str
    cwd: str
    zot_version: str
    deadlines: Deadlines
    confinement: Confinement
    #: What cannot be confined runs nevertheless.
    unsandboxed: bool


class Start(NamedTuple):
    """How the extension that ``manifest`` in ``directory`` describes is started in ``around``."""

    manifest: Manifest
    directory: str
    around: Surroundings

    def guarded(self) -> frozenset[wire.Intercepted]:
        """Return what is blocked before it has said anything."""
        return frozenset(self.manifest.intercept) if self.manifest.on_failure == "block" else frozenset()

    def peer(self, closed: frozenset[wire.Intercepted], *, now: float) -> Peer:
        """Return a new connection to it; ``closed`` is what is blocked until it has subscribed."""
        around = self.around
        ack = wire.HelloAck(
            wire.PROTOCOL_VERSION,
            around.zot_version,
            around.provider,
            around.model,
            around.cwd,
            self.directory,
            self._data_directory(),
        )
        return Peer(
            self.manifest.name,
            ack,
            now=now,
            deadlines=around.deadlines,
            closed=closed,
            fails_closed=self.manifest.on_failure == "block",
            permissions=self.manifest.permissions,
        )

    async def spawn(self, streams: Streams, note: Callable[[str], None]) -> Child:
        """Start it, held to its permissions. Raise ValueError or UserError; ``note`` hears what is odd."""
        around, permissions = self.around, self.manifest.permissions
        argv = [program(self.manifest, self.directory), *self.manifest.args]
        command = argv if permissions is None else await self._confined(argv, permissions, note)
        env = environment(around.env, permissions)
        try:
            return await around.processes().spawn(command, cwd=self.directory, env=env, streams=streams)
        except OSError as problem:
            raise UserError(f"{problem}{self._advice(argv[0], problem)}") from None

    async def _confined(
        self, argv: list[str], permissions: Permissions, note: Callable[[str], None]
    ) -> Sequence[str | bytes]:
        """Return the command line that runs it in its sandbox; without one, if that may be. Raise UserError."""
        try:
            return await self.around.confinement.confine(argv, self.directory, self.manifest, permissions)
        except NoSandbox as problem:
            if not self.around.unsandboxed:
                raise
            note(f"runs without a sandbox: {problem}")
            return argv

    def _advice(self, itself: str, problem: OSError) -> str:
        """Return what would help, "" if we do not know; begins with a separator."""
        if isinstance(problem, PermissionError) and os.path.isfile(itself) and not os.access(itself, os.X_OK):
            return f"; try: chmod +x {shlex.quote(itself)}"
        if isinstance(problem, FileNotFoundError) and " " in self.manifest.exec and not os.path.exists(itself):
            return "; `exec` is the program alone, what follows it belongs in `args`"
        return ""

    def _data_directory(self) -> str:
        """Return where its data belong: beside its manifest, or where it may write if it declares what it may do."""
        names = [] if self.manifest.permissions is None else data_directories(self.manifest)
        return os.path.join(self.directory, *names[:1])
