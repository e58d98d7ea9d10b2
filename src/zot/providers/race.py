"""One host, several addresses: tried beside each other until one of them takes the connection (RFC 8305).

The loop's own `create_connection` can do so, too, but a deadline that falls in the moment in which an address has won
leaves that socket to nobody. Here every socket has an owner at every moment.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

#: How long one address may be silent before the next one is tried beside it.
_NEXT_ADDRESS_S = 0.25

#: Family, type, protocol, canonical name and address, as `getaddrinfo` has them.
_Place: TypeAlias = tuple[int, int, int, str, Any]


async def connected(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to ``host``, which is the caller's to close. Raise OSError.

    When it fails or is cancelled, nothing stays open.
    """
    waiting = iter(await _places(host, port))
    attempts: list[asyncio.Task[socket.socket]] = []
    won: asyncio.Task[socket.socket] | None = None
    try:
        while won is None:
            place = next(waiting, None)
            if place is not None:
                attempts.append(asyncio.get_running_loop().create_task(_attempt(place), name="zot connect"))
            running = [one for one in attempts if not one.done()]
            if not running:
                raise _explained(attempts)
            delay_s = None if place is None else _NEXT_ADDRESS_S
            done, _ = await asyncio.wait(running, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            won = next((one for one in done if one.exception() is None), None)
        return won.result()
    finally:
        for attempt in attempts:
            if attempt is not won:
                attempt.cancel()
                attempt.add_done_callback(_abandon)


async def _places(host: str, port: int) -> Sequence[_Place]:
    """Return where a host is, the families in turn: if one of them leads nowhere, the next does not wait for all."""
    try:  # What is no name needs no lookup, which takes a thread.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families: dict[int, list[_Place]] = {}
    for place in found:
        families.setdefault(place[0], []).append(place)
    return [place for turn in zip_longest(*families.values()) for place in turn if place is not None]


async def _attempt(place: _Place) -> socket.socket:
    family, kind, protocol, _, address = place
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


def _abandon(attempt: asyncio.Task[socket.socket]) -> None:
    """Close what nobody wants any more: it lost the race, or was won when nobody waited for it."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _explained(attempts: Sequence[asyncio.Task[socket.socket]]) -> BaseException:
    """Return why no address took the connection: the reason of the first, unless they differ in kind."""
    problems = [problem for one in attempts if (problem := one.exception()) is not None]
    if not problems:
        return OSError("the name has no address")
    return problems[0] if len({*map(type, problems)}) == 1 else OSError("; ".join(map(str, problems)))
