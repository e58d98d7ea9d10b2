"""Sources of extensions: a program to start, or a connection from outside; and the byte streams that they open."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from zot.config.trust import copy_hashed
from zot.errors import UserError, plain_reason
from zot.extensions.confinement import Confinement, ExtensionPlace, NoSandbox, environment
from zot.extensions.manifest import Manifest, changeable, command_line, data_directories, load, program
from zot.extensions.peer import ExtensionDeadlines, ExtensionPeer, Unconfined
from zot.extensions.permissions import LACKING
from zot.files import make_directory
from zot.text import printable
from zot.tools.process import Child, Outbox, Processes, Program, Streams
from zot.wire import extension as wire

if TYPE_CHECKING:
    from zot.extensions.peer_connection import ExtensionConnection

#: Limit of unsent bytes: an extension this slow does not read at all.
MAX_UNSENT_BYTES = 32 * 1024 * 1024
#: Limit of unread bytes; `RemoteCarrier.bring` waits beyond it.
MAX_UNREAD_BYTES = 1024 * 1024
#: Time for descendants to exit after their parent; those still running then are leftovers.
_LEAVE_S = 0.1
#: Snapshots that were not started for so long are removed when another one of the same extension is made.
_KEPT_S: Final = 30 * 24 * 3600.0
_ORIGIN_DIGITS: Final = 16
_CONTENT_DIGITS: Final = 40


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


def acknowledgement(settings: LaunchSettings, *, directory: str, data: str) -> wire.HelloAck:
    """Return the answer to an extension's hello."""
    return wire.HelloAck(
        wire.PROTOCOL_VERSION, settings.zot_version, settings.provider, settings.model, settings.cwd, directory, data
    )


class ExtensionSource(Protocol):
    """Source of an extension: a program to start (`ProgramSource`), or a connection from outside (`RemoteSource`).

    ``returns`` if it can be opened again after its end.
    """

    name: str
    version: str
    returns: bool

    def guarded(self) -> frozenset[wire.Intercepted]:
        """Return the events blocked until the extension has subscribed for the first time."""

    def peer(self, closed: frozenset[wire.Intercepted], *, now: float) -> ExtensionPeer:
        """Return the peer of a new connection; ``closed`` events are blocked until it has subscribed."""

    async def open(self, errors: int, connection: ExtensionConnection) -> Carrier:
        """Open a carrier for ``connection``; standard error goes to ``errors``. Raise OSError, ValueError or UserError.

        The connection learns when the carrier cannot send any more, its observer when the extension is `Unconfined`.
        """


class ProgramSource:
    """Start of the extension in ``directory``.

    With ``broken`` set, `open` raises it as a UserError. With a ``fingerprint``, it runs from a `Snapshot` of the
    content that was trusted, at every start.
    """

    returns = True

    def __init__(
        self, manifest: Manifest, directory: str, settings: LaunchSettings, *, broken: str = "", fingerprint: str = ""
    ) -> None:
        self.name = manifest.name
        self.version = manifest.version
        self.manifest = manifest
        self.settings = settings
        self._directory = directory
        self._broken = broken
        home = settings.zot_home
        #: The copy to run; None if it runs where it is.
        self._snapshot = Snapshot(home, directory, fingerprint) if fingerprint and home is not None else None
        #: The directory that it runs from.
        self._code = directory if self._snapshot is None else self._snapshot.path

    def guarded(self) -> frozenset[wire.Intercepted]:
        """Return the events blocked until the extension has subscribed for the first time."""
        return frozenset(self.manifest.intercept) if self.manifest.on_failure == "block" else frozenset()

    def peer(self, closed: frozenset[wire.Intercepted], *, now: float) -> ExtensionPeer:
        """Return the peer of a new connection; ``closed`` events are blocked until it has subscribed."""
        ack = acknowledgement(self.settings, directory=self._code, data=self._data_directory())
        return ExtensionPeer(
            self.manifest.name,
            ack,
            now=now,
            deadlines=self.settings.deadlines,
            closed=closed,
            fails_closed=self.manifest.on_failure == "block",
            permissions=self.manifest.permissions,
        )

    async def open(self, errors: int, connection: ExtensionConnection) -> ExtensionProcess:
        """Start it within its permissions. Raise ValueError or UserError."""
        if self._broken:
            raise UserError(self._broken)
        if self._snapshot is not None:
            await asyncio.to_thread(self._snapshot.make, self.manifest)
        permissions = self.manifest.permissions
        env = environment(self.settings.env, permissions)
        command = Program(command_line(self.manifest, self._code), self._code, env)
        advice = ""
        if permissions is not None:
            try:
                data = None if self._snapshot is None else self._snapshot.data
                place = ExtensionPlace(self._code, self._directory, data)
                command = await self.settings.confinement.confine(command, place, self.manifest, permissions)
                advice = LACKING
            except NoSandbox as problem:
                if not self.settings.unsandboxed:
                    raise
                connection.observer.on_peer_event(Unconfined(f"runs without a sandbox: {problem}"))
        theirs, ours = os.pipe()
        outbox = Outbox(ours, connection, max_bytes=MAX_UNSENT_BYTES)
        try:
            child = await self._spawn(command._replace(streams=Streams(theirs, errors)))
        except BaseException:
            outbox.close()
            raise
        finally:
            os.close(theirs)
        return ExtensionProcess(child, outbox, grace_s=self.settings.deadlines.terminate_s, advice=advice)

    async def _spawn(self, command: Program) -> Child:
        try:
            return await self.settings.processes().spawn(command)
        except OSError as problem:
            raise UserError(
                f"{plain_reason(problem)}{self._advice(program(self.manifest, self._code), problem)}"
            ) from None

    def _advice(self, itself: str, problem: OSError) -> str:
        """Return advice on a failed start, "" if there is none; begins with a separator."""
        if isinstance(problem, PermissionError) and os.path.isfile(itself) and not os.access(itself, os.X_OK):
            return f"; try: chmod +x {shlex.quote(itself)}"
        if isinstance(problem, FileNotFoundError) and " " in self.manifest.exec and not os.path.exists(itself):
            return "; `exec` names the program alone; its arguments belong in `args`"
        return ""

    def _data_directory(self) -> str:
        """Return its data directory: its own, or the first of its data directories where only those can be written."""
        names = data_directories(self.manifest)
        if self._snapshot is not None:
            return os.path.join(self._snapshot.data, *names[:1])
        return os.path.join(self._directory, *([] if self.manifest.permissions is None else names[:1]))


class Snapshot:
    """Private copy of the trusted project extension in ``directory``, in zot's ``home``, from which it runs.

    A project's files can change at any time: by a pull, by another agent. The copy is made from the very bytes that
    were hashed for the ``fingerprint``. It has no data: that is in zot's home as well, so nothing that the project
    brings later gets into an extension that was trusted before.
    """

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


class RemoteSource:
    """Source of an extension that connected from outside: after a disconnect it has to connect again.

    Without a ``carrier`` it is a guard that connected in an earlier process and has not come back yet. ``closed`` are
    the events that an earlier connection of this name left blocked. Raise UserError if ``name`` is not valid for an
    extension.
    """

    version = ""
    returns = False

    def __init__(
        self, name: str, carrier: Carrier | None, settings: LaunchSettings, closed: frozenset[wire.Intercepted]
    ) -> None:
        try:
            self.name: str = msgspec.convert(name, wire.ExtensionName)
        except msgspec.ValidationError:
            rule = "letters, digits, `.`, `_` and `-`, at most 64, and a letter or digit first"
            raise UserError(f"{printable(name)!r} is not a valid name for an extension: {rule}") from None
        self._carrier = carrier
        self._settings = settings
        self._closed = closed

    def guarded(self) -> frozenset[wire.Intercepted]:
        return self._closed

    def peer(self, closed: frozenset[wire.Intercepted], *, now: float) -> ExtensionPeer:
        # It may run on another machine: paths of this one do not concern it, and it has no directory here.
        ack = acknowledgement(self._settings, directory="", data="")
        return ExtensionPeer(self.name, ack, now=now, deadlines=self._settings.deadlines, closed=closed)

    async def open(self, errors: int, connection: ExtensionConnection) -> Carrier:
        if self._carrier is None:
            raise UserError("it guards this session and has not reconnected; to remove the guard, call session/dismiss")
        return self._carrier


class Carrier(Protocol):
    """Byte stream to and from one extension, open from the start: `ExtensionProcess` or `RemoteCarrier`."""

    #: Hint for the error if nothing is ever received; "" or begins with a separator.
    advice: str

    def send(self, data: bytes) -> None:
        """Send whole lines in order, without blocking. Does nothing after the end."""

    async def read(self) -> bytes:
        """Return the next bytes, split anywhere; b"" at the end of the stream. Safe to cancel."""

    def arrived(self) -> int:
        """Return how many bytes `read` would return without waiting, as far as known."""

    async def gone(self, *, within_s: float | None) -> bool:
        """Wait up to ``within_s`` until the extension has exited or disconnected. True if it has."""

    async def leftovers(self) -> Sequence[str]:
        """Return the commands of processes still running after the extension itself exited."""

    def acknowledged(self) -> None:
        """Note that the extension acknowledged its shutdown and sends nothing more."""

    def end(self) -> None:
        """Start ending the extension with all its processes. Returns at once; idempotent."""

    async def close(self) -> str:
        """End the extension, even when cancelled, and wait. Return how it ended, such as "exited with 1"."""


class ExtensionProcess:
    """`Carrier` of a child process, which gets SIGTERM and ``grace_s`` before SIGKILL."""

    def __init__(self, child: Child, outbox: Outbox, *, grace_s: float, advice: str) -> None:
        self.advice = advice
        self._child = child
        self._outbox = outbox
        self._grace_s = grace_s
        self._ending: asyncio.Task[None] | None = None

    def send(self, data: bytes) -> None:
        self._outbox.write(data)

    async def read(self) -> bytes:
        return await self._child.read(until_exit=False)

    def arrived(self) -> int:
        return self._child.arrived()

    async def gone(self, *, within_s: float | None) -> bool:
        return await self._child.exited(within_s=within_s)

    async def leftovers(self) -> Sequence[str]:
        if self._ending is not None or not await self._child.background():
            return ()
        await asyncio.sleep(_LEAVE_S)
        return [command for _, command in await self._child.background()]

    def acknowledged(self) -> None:
        return  # It exits by itself, or its deadline ends it.

    def end(self) -> None:
        # Once is enough: it sends SIGTERM, waits and then kills.
        if self._ending is None:
            ending = self._child.end(grace_s=self._grace_s)
            self._ending = asyncio.get_running_loop().create_task(ending, name="zot extension end")

    async def close(self) -> str:
        self.end()  # It may have exited without its descendants.
        assert self._ending is not None
        try:
            await asyncio.shield(self._ending)
        finally:
            self._child.close()
            self._outbox.close()
        return self._child.how_it_ended()


class RemoteEnd(Protocol):
    """The connection under a `RemoteCarrier`, such as a WebSocket. Its methods must not block."""

    def send(self, data: bytes) -> None:
        """Send whole lines. A client that does not read them is disconnected."""

    def hang_up(self) -> None:
        """Close the connection."""


class RemoteCarrier:
    """`Carrier` of a connection that another component owns: it calls `bring` with received bytes, and `hung_up` at the
    end of the connection."""

    advice = ""

    def __init__(self, remote: RemoteEnd) -> None:
        self._remote = remote
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._over = asyncio.Event()
        self._lost = False
        self._ended = False

    async def bring(self, data: bytes) -> None:
        """Add received bytes, split anywhere. Waits while too many are unread."""
        await self._room.wait()
        if self._over.is_set():
            return
        self._unread.append(data)
        self._size += len(data)
        self._news.set()
        if self._size >= MAX_UNREAD_BYTES and not self._lost:
            self._room.clear()

    def lost(self) -> None:
        """Note a lost connection: bytes already received can be added without waiting."""
        self._lost = True
        self._room.set()

    def hung_up(self) -> None:
        """Note the end of the connection; bytes already added are still read. Idempotent."""
        self._over.set()
        self._news.set()
        self._room.set()

    def send(self, data: bytes) -> None:
        if data and not self._over.is_set():
            self._remote.send(data)

    async def read(self) -> bytes:
        while not self._unread:
            if self._over.is_set():
                return b""
            self._news.clear()
            await self._news.wait()
        data = self._unread.popleft()
        self._size -= len(data)
        if self._size < MAX_UNREAD_BYTES:
            self._room.set()
        return data

    def arrived(self) -> int:
        return self._size

    async def gone(self, *, within_s: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._over.wait()
        return self._over.is_set()

    async def leftovers(self) -> Sequence[str]:
        return ()

    def acknowledged(self) -> None:
        self.end()  # A remote extension need not exit, so its acknowledgement is its end.

    def end(self) -> None:
        if not self._over.is_set():
            self._ended = True
            self._unread.clear()
            self._size = 0
            self.hung_up()
            self._remote.hang_up()

    async def close(self) -> str:
        self.end()
        return "was disconnected" if self._ended else "disconnected"
