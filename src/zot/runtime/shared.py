"""Shared resources: the guardian, HTTP connections and key commands that all sessions of a process use."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import structs

if TYPE_CHECKING:
    from zot.providers.base import Deadlines, HttpRequest, HttpResponse, Transport
    from zot.providers.http import HttpTransport
    from zot.runtime.key_command import KeyCommand
    from zot.store import Row
    from zot.tools.process import Child, Processes, Streams

T = TypeVar("T")

#: A file that was changed so short a time ago may change again without that its times tell.
_UNSETTLED_NS = 1_000_000_000
#: So many equal values and so many files are remembered; what was not asked for longest is forgotten.
_MAX_REMEMBERED = 256


class Premises:
    """What one process has for all of its sessions. Belongs to one event loop; `close` ends it for everybody.

    What is read and remembered can be had in any thread. In a process of our own, commands are kept out of its memory.
    """

    def __init__(self, *, own_process: bool = False) -> None:
        self.own_process = own_process
        self._lock = threading.Lock()
        self._remembered: OrderedDict[Hashable, object] = OrderedDict()
        self._files: OrderedDict[tuple[str, object], tuple[tuple[int, ...], object]] = OrderedDict()
        self._transports: dict[frozenset[tuple[str, str]], tuple[HttpTransport, LentTransport]] = {}
        self._key_commands: dict[tuple[str, str, frozenset[tuple[str, str]]], KeyCommand] = {}
        self._processes: Processes | None = None
        self._closed = False

    def processes(self, key: str) -> Processes:
        """Return what starts programs for the session ``key``, and ends those alone."""
        return LentProcesses(self._shared_processes, key)

    def transport(self, env: Mapping[str, str]) -> Transport:
        """Return what sends requests as ``env`` says: who has the same proxies and certificates has the same one."""
        from zot.providers.http import DECIDING, HttpTransport

        place = frozenset((name, value) for name in DECIDING if (value := env.get(name)) is not None)
        with self._lock:
            if place not in self._transports:
                transport = HttpTransport(dict(place))
                self._transports[place] = transport, LentTransport(transport)
            return self._transports[place][1]

    def key_command(self, provider: str, command: str, env: Mapping[str, str]) -> KeyCommand:
        """Return what runs a command that prints a key: once, however many sessions need it at the same time."""
        from zot.runtime.key_command import KeyCommand

        place = provider, command, frozenset(env.items())
        with self._lock:
            if place not in self._key_commands:
                self._key_commands[place] = KeyCommand(provider, command, env)
            return self._key_commands[place]

    def read(self, path: str, load: Callable[[str], T]) -> T:
        """Return what ``load`` makes of a file, made once for everybody until the file changes: nobody may change it.

        Raise what ``load`` raises.
        """
        place = os.path.abspath(path), load
        with self._lock:
            # Looked at before it is read: if it changes in between, it is read once more than needed, never once less.
            known, seen = self._files.pop(place, None), _look(path)
            made = load(path) if known is None or known[0] != seen else known[1]
            if seen is not None:
                _remember(self._files, place, (seen, made))
        return cast(T, made)

    def same(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for ``key`` before, else what ``make`` makes now: nobody may change it.

        Equal keys are to mean the same, whoever has them: a value that says nothing of its kind is no key.
        """
        with self._lock:
            made = self._remembered.pop(key) if key in self._remembered else make()
            _remember(self._remembered, key, made)
        return cast(T, made)

    def same_text(self, text: str) -> str:
        """Return ``text``, as others have it if they do: long ones are held once."""
        return self.same(("text", text), lambda: text)

    def same_prompts(self, changes: Sequence[Row]) -> Sequence[Row]:
        """Return ``changes``, whose system prompts are those that other sessions hold where they are equal."""
        from zot.store import Configured

        return [
            structs.replace(row, system=self.same_text(row.system)) if isinstance(row, Configured) else row
            for row in changes
        ]

    async def close(self) -> None:
        """End what runs and close every connection. Any number of times; afterwards nothing is started or sent."""
        self._closed = True
        try:
            if self._processes is not None:
                await self._processes.close()
        finally:
            await asyncio.gather(*(transport.close() for transport, _ in self._transports.values()))

    def kill(self) -> None:
        """Kill what all sessions have running, at once and from any thread. Nothing can be started any more."""
        self._closed = True
        if self._processes is not None:
            self._processes.kill_all()

    def _shared_processes(self) -> Processes:
        if self._processes is None:
            from zot.tools.guardian import open_processes

            if self._closed:
                raise ChildProcessError("nothing can be started any more: zot is ending")
            self._processes = open_processes(protected=self.own_process)
        return self._processes


class LentTransport:
    """A `Transport` that is shared: whoever closes it only says that it needs it no more."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport

    async def send(self, request: HttpRequest, deadlines: Deadlines) -> HttpResponse:
        """See `Transport`."""
        return await self._transport.send(request, deadlines)

    async def close(self) -> None:
        """Its connections are kept for the others."""


class LentProcesses:
    """`Processes` of one session, whose ``key`` owns everything that it starts, among those of others."""

    def __init__(self, shared: Callable[[], Processes], key: str) -> None:
        self._shared = shared
        self._key = key
        self._used: Processes | None = None
        self._closed = False

    async def spawn(
        self,
        argv: Sequence[str | bytes],
        *,
        cwd: str,
        env: Mapping[str, str],
        owners: Sequence[str] = (),
        streams: Streams | None = None,
    ) -> Child:
        """See `Processes`."""
        self._check_open()
        self._used = self._shared()
        mine = owners if self._key in owners else (*owners, self._key)
        child = await self._used.spawn(argv, cwd=cwd, env=env, owners=mine, streams=streams)
        if self._closed:  # It waited for its turn when everything was killed.
            await child.end(grace_s=0)
            child.close()
        self._check_open()
        return child

    async def end_all(self, owner: str, *, grace_s: float) -> None:
        """See `Processes`."""
        if self._used is not None:
            await self._used.end_all(owner, grace_s=grace_s)

    async def close(self) -> None:
        """End what was started here. Any number of times; afterwards nothing can be spawned here."""
        from zot.tools.process import CLOSE_GRACE_S

        self._closed = True
        await self.end_all(self._key, grace_s=CLOSE_GRACE_S)

    def kill_all(self) -> None:
        """Kill what was started here, as `Processes` says."""
        self._closed = True
        if self._used is not None:
            self._used.kill(self._key)

    def kill(self, owner: str) -> None:
        """See `Processes`."""
        if self._used is not None:
            self._used.kill(owner)

    def runs(self, owner: str | None = None) -> bool:
        """See `Processes`; for nobody in particular, what was started here."""
        return self._used is not None and self._used.runs(owner or self._key)

    def _check_open(self) -> None:
        if self._closed:
            raise ChildProcessError("nothing can be started any more: the session has been closed")


K = TypeVar("K", bound=Hashable)


def _remember(memory: OrderedDict[K, T], key: K, value: T) -> None:
    """Make ``value`` the newest; the oldest makes room."""
    memory[key] = value
    if len(memory) > _MAX_REMEMBERED:
        memory.popitem(last=False)


def _look(path: str) -> tuple[int, ...] | None:
    """Return what changes with a file; None if that cannot be told."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if found.st_mtime_ns > time.time_ns() - _UNSETTLED_NS:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
