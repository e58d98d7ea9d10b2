"""A WebSocket as an extension that has connected by itself: a message is a frame of its protocol, or some in lines."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from zot.errors import AgentError, NoSuchSession, UserError
from zot.extensions.link import Link
from zot.runtime.extension_host import join
from zot.serve.daemon.audit import Who
from zot.serve.daemon.backlog import MAX_UNREAD_BYTES
from zot.serve.web.conversation import BELOW
from zot.serve.web.gate import subprotocol_of
from zot.serve.web.refusing import refuse
from zot.serve.web.websocket import Below, Receive, Send, WebWire
from zot.store import Guarded

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon
    from zot.session.session import Session


log = logging.getLogger("zot")

#: What ends a connection that brings what is no text.
_BINARY = 1003
#: How long to wait before it is tried again to put a guard on record.
_PAUSES_S = (0.05, 0.25, 1.0, 4.0)


class Extending:
    """What is done for an extension that connects (an ASGI application). Its address names its session, and itself."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Let one extension take part in one session until it has gone, or the session is over."""
        await receive()  # It wants to connect.
        named = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        session_id, name = (named.get(key, [""])[-1] for key in ("session", "name"))
        if not session_id or not name:
            await refuse(
                scope, send, 400, "the address must say which session and by which name: ?session=ID&name=NAME"
            )
            return
        try:
            async with self._daemon.hub.use(session_id) as session:
                await self._take_part(scope, session, (session_id, name), receive, send)
        except NoSuchSession as problem:
            await refuse(scope, send, 404, str(problem))
        except UserError as problem:
            await refuse(scope, send, 409, str(problem))
        except AgentError as problem:
            await refuse(scope, send, 503, str(problem))

    async def _take_part(
        self, scope: Any, session: Session, named: tuple[str, str], receive: Receive, send: Send
    ) -> None:
        """Bring what it says and tell it what it is told. Raise UserError before it is let in."""
        session_id, name = named
        below: Below | None = (scope.get("extensions") or {}).get(BELOW)
        wire = WebWire(send, below)
        link = Link(lambda data: _tell(wire, data), lambda: wire.finish(extension.problem))
        keeping: set[asyncio.Task[None]] = set()

        def guards(guarded: Guarded) -> None:
            keeping.add(asyncio.get_running_loop().create_task(_keep(session, guarded), name="zot guard"))

        extension = join(session.agent.extensions, name, link, guards)
        who = Who("ws", token=scope["zot.bearer"])
        self._daemon.parts.audit.note("connected", who, method="/ext", session=session_id)
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol_of(scope)})
            await wire.attend(_hear(link, below, receive, send))
        finally:
            link.hung_up()
            wire.end()
            await extension.over()
            if keeping:
                await asyncio.wait(keeping)


async def _keep(session: Session, guarded: Guarded) -> None:
    """Put on record what is guarded from now on; try again while somebody else writes."""
    for pause_s in (*_PAUSES_S, None):
        try:
            return await session.keep_guard(guarded)
        except AgentError as problem:
            if pause_s is None:
                log.warning("that %s guards its session is not on record: %s", guarded.name, problem)
            else:
                await asyncio.sleep(pause_s)


async def _hear(link: Link, below: Below | None, receive: Receive, send: Send) -> None:
    """Bring what it says, until it has gone. That it has may be known before all is heard that it has said."""
    if below is None:
        return await _bring_all(link, receive, send)
    watching = asyncio.get_running_loop().create_task(_lose(link, below), name="zot extension lost")
    try:
        await _bring_all(link, receive, send)
    finally:
        watching.cancel()


async def _lose(link: Link, below: Below) -> None:
    await below.gone.wait()
    link.lost()


async def _bring_all(link: Link, receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        if text is None:
            await send({"type": "websocket.close", "code": _BINARY, "reason": "frames are text"})
            return
        data = text.encode()
        await link.bring((data if _is_several(data) else data.replace(b"\n", b" ")) + b"\n")


def _is_several(data: bytes) -> bool:
    """Tell if a message has several frames, one in a line, and not one that is written in several lines."""
    if b"\n" not in data:
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.MsgspecError:
        return True
    return False


def _tell(wire: WebWire, data: bytes) -> None:
    wire.send(data)
    if wire.unread > MAX_UNREAD_BYTES:
        wire.cut("it does not read")
