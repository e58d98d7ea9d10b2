"""A WebSocket as an extension that has connected by itself: each text frame is one frame of the extension protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from zot.errors import AgentError, NoSuchSession, UserError
from zot.extension_host import join
from zot.extensions.link import Link
from zot.serve.audit import Who
from zot.serve.feed import MAX_UNREAD_BYTES
from zot.web.conversation import BELOW
from zot.web.gate import subprotocol_of
from zot.web.refusing import refuse
from zot.web.web_wire import Receive, Send, WebWire

if TYPE_CHECKING:
    from zot.serve.daemon import Daemon
    from zot.session import Session


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
        wire = WebWire(send, (scope.get("extensions") or {}).get(BELOW))
        link = Link(lambda data: _tell(wire, data), wire.finish)
        extension = join(session.agent.extensions, name, link)
        who = Who("ws", token=scope["zot.bearer"])
        self._daemon.parts.audit.note("connected", who, method="/ext", session=session_id)
        try:
            await send({"type": "websocket.accept", "subprotocol": subprotocol_of(scope)})
            await wire.attend(_hear(link, receive))
        finally:
            link.hung_up()
            wire.end()
            await extension.over()


async def _hear(link: Link, receive: Receive) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        if text is None:
            return
        await link.bring(text.replace("\n", " ").encode() + b"\n")


def _tell(wire: WebWire, data: bytes) -> None:
    wire.send(data)
    if wire.unread > MAX_UNREAD_BYTES:
        wire.cut("it does not read")
