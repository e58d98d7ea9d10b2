"""Shared resources: the guardian, HTTP connections and key commands that the sessions of a process use."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar, cast

from msgspec import structs

from zot.config.config import tool_environment
from zot.store import Row, SettingsChanged

if TYPE_CHECKING:
    from zot.providers.base import Transport
    from zot.providers.http import SharedHttpTransport
    from zot.runtime.key_command import KeyCommand
    from zot.tools.process import Child, Processes, Program

T = TypeVar("T")

#: The most cached values; the least recently used one is evicted.
_MAX_CACHED = 256


class SharedResources:
    """Resources that sessions borrow. The creator closes them after the sessions, as ``async with`` does.

    A program with one session has them, too: nothing is started or imported before it is needed. They belong to one
    event loop; cached values can be read from any thread.

    ``own_process`` says that the process is zot's own: commands then cannot read its memory and environment. An
    embedding program decides that for itself. ``serves_many`` says that many sessions share the event loop, so that
    opening one must not block it: files are then read in another thread.
    """

    def __init__(self, *, own_process: bool = False, serves_many: bool = False) -> None:
        self.own_process = own_process
        self.serves_many = serves_many
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, object] = OrderedDict()
        self._transports: dict[frozenset[tuple[str, str]], SharedHttpTransport] = {}
        self._key_commands: dict[tuple[str, str, frozenset[tuple[str, str]]], KeyCommand] = {}
        self._processes: Processes | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def processes(self, key: str) -> Processes:
        """Return a launcher for the session ``key`` that ends only that session's processes."""
        return BorrowedProcesses(self, key)

    def launcher(self) -> Processes:
        """Return the launcher of all sessions' processes, started for the first of them."""
        if self._processes is None:
            from zot.tools.guardian import open_processes  # Imported lazily: needed for the first tool call.

            if self._closed:
                raise ChildProcessError("no process can be started: zot is ending")
            self._processes = open_processes(protected=self.own_process)
        return self._processes

    def transport(self, env: Mapping[str, str]) -> Transport:
        """Return the transport for ``env``: environments with equal proxies and certificates share one."""
        from zot.providers.http import DECIDING, SharedHttpTransport  # Imported lazily: lab does not need it.

        place = frozenset((name, value) for name in DECIDING if (value := env.get(name)) is not None)
        with self._lock:
            if place not in self._transports:
                self._transports[place] = SharedHttpTransport(dict(place))
            return self._transports[place]

    def key_command(self, provider: str, command: str, env: Mapping[str, str]) -> KeyCommand:
        """Return the runner of a key command, shared by all sessions that need the same key."""
        from zot.runtime.key_command import KeyCommand  # Imported lazily: few keys come from a command.

        place = provider, command, frozenset(env.items())
        with self._lock:
            if place not in self._key_commands:
                self._key_commands[place] = KeyCommand(provider, command, env)
            return self._key_commands[place]

    def same(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the cached value for ``key``, else cache the result of ``make``: do not modify it.

        Keys are shared by all callers, so each must name the kind of its value.
        """
        with self._lock:
            made = self._values.pop(key) if key in self._values else make()
            self._values[key] = made
            if len(self._values) > _MAX_CACHED:
                self._values.popitem(last=False)
        return cast(T, made)

    def tool_environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Return the environment of tools and extensions, held once for all sessions with the same ``env``."""
        return self.same(("environment", frozenset(env.items())), lambda: tool_environment(env))

    def same_text(self, text: str) -> str:
        """Return a cached equal of ``text``, so that long texts are held once."""
        return self.same(("text", text), lambda: text)

    def same_prompts(self, changes: Sequence[Row]) -> Sequence[Row]:
        """Return ``changes`` with their system prompts replaced by cached equals."""
        return [
            structs.replace(row, system=self.same_text(row.system)) if isinstance(row, SettingsChanged) else row
            for row in changes
        ]

    async def close(self) -> None:
        """End all processes and close every connection. Idempotent; afterwards nothing is started or sent."""
        self._closed = True
        try:
            if self._processes is not None:
                await self._processes.close()
        finally:
            await asyncio.gather(*(transport.close_connections() for transport in self._transports.values()))

    def kill(self) -> None:
        """Kill the processes of all sessions, at once and from any thread. Nothing can be started afterwards."""
        self._closed = True
        if self._processes is not None:
            self._processes.kill_all()


class BorrowedProcesses:
    """The `Processes` of one session in a shared launcher: ``key`` owns everything it starts."""

    def __init__(self, resources: SharedResources, key: str) -> None:
        self._resources = resources
        self._key = key
        self._used: Processes | None = None
        self._closed = False

    async def spawn(self, command: Program) -> Child:
        """See `Processes`."""
        self._check_open()
        self._used = self._resources.launcher()
        if self._key not in command.owners:
            command = command._replace(owners=(*command.owners, self._key))
        child = await self._used.spawn(command)
        if self._closed:  # Killed while it waited for its turn.
            await child.end(grace_s=0)
            child.close()
        self._check_open()
        return child

    async def end_all(self, owner: str, *, grace_s: float) -> None:
        """See `Processes`."""
        if self._used is not None:
            await self._used.end_all(owner, grace_s=grace_s)

    async def close(self) -> None:
        """End the processes started here. Idempotent; afterwards nothing can be started here."""
        self._closed = True
        if self._used is not None:
            from zot.tools.process import CLOSE_GRACE_S  # Imported lazily: only with processes is it loaded.

            await self.end_all(self._key, grace_s=CLOSE_GRACE_S)

    def kill_all(self) -> None:
        """Kill the processes started here, as `Processes` says."""
        self._closed = True
        if self._used is not None:
            self._used.kill(self._key)

    def kill(self, owner: str) -> None:
        """See `Processes`."""
        if self._used is not None:
            self._used.kill(owner)

    def runs(self, owner: str | None = None) -> bool:
        """See `Processes`; without an owner, report on the processes started here."""
        return self._used is not None and self._used.runs(owner or self._key)

    def _check_open(self) -> None:
        if self._closed:
            raise ChildProcessError("no process can be started: the session has been closed")
