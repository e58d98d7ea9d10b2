"""Agent Client Protocol v1: the connection with an editor, and the methods that it calls."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, assert_never

import msgspec

from zot.config.config import Config, ConfigOverrides, zot_home
from zot.encoding import UNREADABLE
from zot.errors import NoSuchSession, RunCancelled, explained
from zot.runtime.shared import SharedResources
from zot.serve.acp.own_sessions import OwnSessions
from zot.serve.acp.session import AcpSession, EditorSessions, PromptReply, SessionBackend, encode_failure
from zot.serve.stdio import GreetedStreams
from zot.serve.streams import StreamWriter, serve_lines
from zot.session.session import Session
from zot.text import visible
from zot.wire import acp
from zot.wire.acp_greeting import BY_ENVIRONMENT, AcpGreeting
from zot.wire.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NULL,
    Bad,
    Reply,
    RpcError,
    RpcRequest,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    frame_too_large,
)
from zot.wire.lines import TooLong

if TYPE_CHECKING:
    from zot.client.client import Client

log = logging.getLogger("zot")

#: Requests to one open session, which are performed in order.
_OF_SESSION: Final = frozenset({"session/prompt", "session/cancel", "session/set_mode", "session/set_config_option"})
#: The most requests that are being answered at once, besides prompts.
_MAX_REQUESTS: Final = 256
#: Sessions on one page of a list.
_PAGE: Final = 100
#: Limit for the removal of sessions without a message.
_CLOSE_S: Final = 1.0


class AcpServer:
    """One client and its sessions. ``config`` is that of the command line."""

    def __init__(self, config: Config, greeting: AcpGreeting, output: StreamWriter, backends: EditorSessions) -> None:
        self.greeting = greeting
        self.output = output
        self.input_ended = False
        self._config = config
        self._backends = backends
        #: Open sessions by id.
        self._sessions: dict[str, AcpSession] = {}
        #: Requests of sessions that are being loaded again, in order.
        self._held: dict[str, list[tuple[RpcRequest, Any]]] = {}
        #: Requests being answered, by their id.
        self._requests: dict[bytes, asyncio.Task[None]] = {}
        #: The ids of the requests that change a setting now; those after them are held.
        self._changing: set[bytes] = set()
        self._prompts: dict[bytes, PromptReply] = {}
        self._background: set[asyncio.Task[None]] = set()
        #: Our own requests: what happens with the answer.
        self._replies: dict[int, Callable[[Reply], None]] = {}
        self._last_request = 0
        self._asked: set[asyncio.Future[Reply]] = set()
        backends.client = self

    @property
    def sessions(self) -> Sequence[Session]:
        """The sessions of this process."""
        return self._backends.sessions

    # Frames to the client.

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.output.write(encode_notification(method, params))

    def request(self, method: str, params: Any, answer: Callable[[msgspec.Raw | None], None]) -> int:
        """Send a request and return its id; ``answer`` is called with the result, None for an error."""
        return self._send(method, params, lambda reply: answer(None if reply.error is not None else reply.result))

    def _send(self, method: str, params: Any, take: Callable[[Reply], None]) -> int:
        self._last_request += 1
        self._replies[self._last_request] = take
        self.output.write(encode_request(method, params, self._last_request))
        return self._last_request

    async def ask(self, method: str, params: Any, *, within_s: float) -> msgspec.Raw:
        """Send a request and return its result. Raise RpcError, TimeoutError. A cancelled one is withdrawn."""
        if self.input_ended:
            raise _no_answer()
        waits: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        number = self._send(method, params, lambda reply: None if waits.done() else waits.set_result(reply))
        self._asked.add(waits)
        try:
            async with asyncio.timeout(within_s):
                reply = await waits
        finally:
            self._asked.discard(waits)
            self.withdraw(number)
        if reply.error is not None:
            raise RpcError(reply.error.code, reply.error.message)
        return reply.result or NULL

    def withdraw(self, number: int) -> None:
        """Cancel a request of ours; a late answer is ignored."""
        if self._replies.pop(number, None) is not None:
            self.notify("$/cancel_request", {"requestId": number})

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` beside the requests."""
        task = asyncio.get_running_loop().create_task(work, name="zot acp work")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def has(self, session: AcpSession) -> bool:
        """True if a session is open."""
        return self._sessions.get(session.id) is session

    def prompt_answered(self, reply: PromptReply) -> None:
        """Forget a prompt that has its answer."""
        self._prompts.pop(bytes(reply.request_id or b""), None)

    # Frames from the client.

    def take(self, line: bytes | TooLong) -> None:
        """Handle one line."""
        if isinstance(line, TooLong):
            self.output.write(encode_error(NULL, frame_too_large(line.limit)))
            return
        match decode(line):
            case Bad() as bad:
                self.output.write(encode_error(bad.id, bad))
            case Reply() as reply:
                self._take_reply(reply)
            case RpcRequest() as request:
                self._take_request(request)
            case None:
                pass  # A malformed reply matches none of our requests.

    def _take_reply(self, reply: Reply) -> None:
        try:
            number = msgspec.json.decode(reply.id, type=int)
        except UNREADABLE:
            return
        if (take := self._replies.pop(number, None)) is not None:
            take(reply)

    def _take_request(self, request: RpcRequest) -> None:
        if request.method == "initialize":
            self.output.write(self.greeting.answer(request))
            return
        try:
            if request.method not in acp.METHODS:
                raise RpcError(METHOD_NOT_FOUND, f"unknown method {request.method!r}")
            if not self.greeting.initialized:
                raise RpcError(INVALID_REQUEST, "the first request must be initialize")
            params = acp.params_of(request)
            if request.id is not None and self._is_in_use(bytes(request.id)):
                raise RpcError(INVALID_REQUEST, "a request with this id is being answered")
            if request.method in _OF_SESSION:
                self._of_session(request, params)
            else:
                self._perform(request, params)
        except Exception as problem:
            # The outermost boundary: an unexpected error fails this request, not the connection.
            self._fail(request, problem)

    def _of_session(self, request: RpcRequest, params: Any) -> None:
        """Perform a request to an open session, after those before it: it may have to be loaded again first."""
        session = self._open_session(params.session_id)
        if (held := self._held.get(session.id)) is not None:
            if len(held) >= _MAX_REQUESTS:
                raise RpcError(INVALID_REQUEST, "too many requests wait for this session")
            held.append((request, params))
        elif not session.backend.is_ready:
            self._held[session.id] = [(request, params)]
            self.spawn(self._hold(session, session.backend.load()))
        elif isinstance(params, acp.SetMode | acp.SetConfigOption):
            self._held[session.id] = []
            self._changing.add(bytes(request.id or b""))
            self.spawn(self._hold(session, self._change(request, session, params)))
        else:
            self._perform(request, params)

    async def _change(
        self, request: RpcRequest, session: AcpSession, params: acp.SetMode | acp.SetConfigOption
    ) -> None:
        try:
            await self._answer(request, self._set_option(request, session, params))
        finally:
            self._changing.discard(bytes(request.id or b""))

    async def _hold(self, session: AcpSession, work: Awaitable[None]) -> None:
        """Await ``work``, then perform the requests that came meanwhile."""
        problem: Exception | None = None
        try:
            await work
        except Exception as exc:
            problem = exc
        for request, params in self._held.pop(session.id):
            try:
                if problem is not None:
                    raise problem
                self._of_session(request, params)
            except Exception as exc:
                self._fail(request, exc)

    def _perform(self, request: RpcRequest, params: Any) -> None:
        match params:
            case acp.PromptParams():
                self._prompt(request, params)
            case acp.CancelRequest(request_id=request_id):
                self._cancel_request(bytes(request_id))
            case acp.SessionParams(session_id=session_id) if request.method == "session/cancel":
                self._open_session(session_id).cancel()
                self._succeed(request, {})
            case acp.Authenticate(method_id=method_id):
                if method_id != BY_ENVIRONMENT:
                    raise RpcError(INVALID_PARAMS, f"unknown authentication method {method_id!r}")
                self._backends.check_login()
                self._succeed(request, {})
            case acp.Logout():
                self._logout()
                self._succeed(request, {})
            case acp.NewSession():
                self._later(request, self._new(request, params))
            case acp.OpenSession():
                self._later(request, self._open(request, params))
            case acp.ListSessions():
                self._later(request, self._list(request, params))
            case acp.SessionParams(session_id=session_id) if request.method == "session/close":
                self._later(request, self._close(request, session_id))
            case acp.SessionParams(session_id=session_id):
                self._later(request, self._delete(request, session_id))
            case _:
                assert_never(params)

    def _prompt(self, request: RpcRequest, params: acp.PromptParams) -> None:
        session = self._open_session(params.session_id)
        key = bytes(request.id or b"")
        reply = PromptReply(self, request, session)
        if request.id is not None:
            self._prompts[key] = reply
        try:
            session.prompt(reply, params)
        except BaseException:
            self._prompts.pop(key, None)
            raise

    def _cancel_request(self, request_id: bytes) -> None:
        if (reply := self._prompts.get(request_id)) is not None:
            reply.cancel()
        elif (task := self._requests.get(request_id)) is not None:
            task.cancel()
        else:
            self._cancel_held(request_id)

    def _cancel_held(self, request_id: bytes) -> None:
        """Answer a request that waits for its session, which will not be performed."""
        for held in self._held.values():
            for request, params in held:
                if request.id is not None and bytes(request.id) == request_id:
                    held.remove((request, params))
                    if isinstance(params, acp.PromptParams):
                        self._succeed(request, {"stopReason": "cancelled"})
                    else:
                        self._fail(request, RpcError(acp.CANCELLED, "the request was cancelled"))
                    return

    def _is_in_use(self, request_id: bytes) -> bool:
        """True for the id of a request without an answer."""
        return (
            request_id in self._prompts
            or request_id in self._requests
            or request_id in self._changing
            or any(bytes(request.id or b"") == request_id for held in self._held.values() for request, _ in held)
        )

    def _open_session(self, session_id: str) -> AcpSession:
        if (session := self._sessions.get(session_id)) is None:
            raise NoSuchSession(f"no session {session_id!r} is open; session/load or session/resume opens it")
        return session

    def _logout(self) -> None:
        """Remove the provider's stored key."""
        from zot.config.auth_file import remove  # Imported lazily: few clients log out.

        if (home := zot_home(self._config.environment)) is not None:
            remove(home, self._config.provider)

    # Requests that are answered later.

    def _later(self, request: RpcRequest, work: Coroutine[Any, Any, None]) -> None:
        key = bytes(request.id or b"")
        if len(self._requests) >= _MAX_REQUESTS or key in self._requests or key in self._prompts:
            work.close()
            raise RpcError(INVALID_REQUEST, "this id is in use, or too many requests are being answered")
        task = asyncio.get_running_loop().create_task(self._answer(request, work), name="zot acp answer")
        self._requests[key] = task

        def over(_: asyncio.Task[None]) -> None:
            del self._requests[key]
            work.close()
            if task.cancelled():  # Perhaps before it began.
                self._fail(request, RpcError(acp.CANCELLED, "the request was cancelled"))

        task.add_done_callback(over)

    async def _answer(self, request: RpcRequest, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as problem:
            self._fail(request, problem)

    async def _new(self, request: RpcRequest, params: acp.NewSession) -> None:
        _check_place(params.cwd)
        session = self._opened(*await self._backends.new(params))
        self._succeed(request, {"sessionId": session.id, **session.settings()})
        self._begin(session)

    async def _open(self, request: RpcRequest, params: acp.OpenSession) -> None:
        """Answer `session/load`, `session/resume` and `session/fork`."""
        _check_place(params.cwd)
        if request.method == "session/load" and (known := self._sessions.get(params.session_id)) is not None:
            known.backend.hold()
            try:
                await self._open_held(request, params)
            finally:
                known.backend.follow()
        else:
            await self._open_held(request, params)

    async def _open_held(self, request: RpcRequest, params: acp.OpenSession) -> None:
        forked: dict[str, str] = {}
        if request.method == "session/fork":
            session = self._opened(*await self._backends.fork(params))
            forked = {"sessionId": session.id}
        else:
            session = self._opened(params.session_id, await self._backends.open(params))
        session.is_titled = True
        if request.method == "session/load":
            await session.replay()
        self._succeed(request, {**forked, **session.settings()})
        self._begin(session)

    def _begin(self, session: AcpSession) -> None:
        """Send updates from now on: the client has the response that opened the session."""
        session.backend.follow()
        self.spawn(session.show_commands())

    def _opened(self, session_id: str, backend: SessionBackend) -> AcpSession:
        """Return the client's session with this id, which it may have opened before."""
        if session_id not in self._sessions:
            self._sessions[session_id] = AcpSession(self, session_id, backend)
        return self._sessions[session_id]

    async def _set_option(
        self, request: RpcRequest, session: AcpSession, params: acp.SetMode | acp.SetConfigOption
    ) -> None:
        if isinstance(params, acp.SetConfigOption):
            self._succeed(request, {"configOptions": await session.set_option(params.config_id, params.value)})
        else:
            if not session.backend.options().mode:
                raise RpcError(INVALID_PARAMS, "this session has no modes: the policy of the daemon's agent applies")
            await session.backend.set_option("mode", params.mode_id)
            self._succeed(request, {})
            session.show_options()

    async def _list(self, request: RpcRequest, params: acp.ListSessions) -> None:
        start = _page_start(params.cursor)
        found = await self._backends.listed(_normal(params.cwd))
        page: dict[str, Any] = {
            "sessions": [
                {"sessionId": one.id, "cwd": one.cwd, "title": visible(one.title) or None, "updatedAt": one.updated}
                for one in found[start : start + _PAGE]
            ]
        }
        if start + _PAGE < len(found):
            page["nextCursor"] = str(start + _PAGE)
        self._succeed(request, page)

    async def _close(self, request: RpcRequest, session_id: str) -> None:
        session = self._open_session(session_id)
        await self._surely(self._release(session))
        self._succeed(request, {})

    async def _release(self, session: AcpSession) -> None:
        if session.waiting() or session.is_running:
            session.cancel()
        await session.backend.release()
        session.fail_all(RunCancelled("the session was closed"))
        if self.has(session):
            del self._sessions[session.id]

    async def _delete(self, request: RpcRequest, session_id: str) -> None:
        await self._surely(self._remove(session_id))
        self._succeed(request, {})

    async def _remove(self, session_id: str) -> None:
        if (session := self._sessions.get(session_id)) is not None:
            await self._release(session)
        await self._backends.delete(session_id)

    async def _surely(self, work: Coroutine[Any, Any, None]) -> None:
        """Await ``work``, which continues if the request is cancelled."""
        await asyncio.shield(self.spawn(work))

    def _succeed(self, request: RpcRequest, result: dict[str, Any]) -> None:
        if request.id is not None:
            self.output.write(encode_result(request.id, result))

    def _fail(self, request: RpcRequest, problem: Exception) -> None:
        if request.id is not None:
            known = problem if isinstance(problem, RpcError) else explained(problem, log, request.method)
            self.output.write(encode_failure(request.id, known))

    # Its end.

    def end_input(self) -> None:
        """Handle the end of the client's input: it can no longer answer approvals."""
        self.input_ended = True
        for waits in self._asked:
            if not waits.done():
                waits.set_exception(_no_answer())
        for session in self.sessions:
            session.worker.approver_left()

    async def finish(self) -> None:
        """Wait until every request has been answered."""
        while waiting := [*self._requests.values(), *self._background]:
            await asyncio.wait(waiting)
        for reply in list(self._prompts.values()):
            await reply.over.wait()
        for session in self.sessions:
            await session.worker.finish()

    async def close(self) -> None:
        """Release what the sessions needed, within a limit."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._backends.close(), _CLOSE_S)


def _no_answer() -> RpcError:
    return RpcError(INVALID_REQUEST, "the client has closed its output and cannot answer")


def _check_place(cwd: str) -> None:
    """Raise RpcError unless a session can be opened in ``cwd``."""
    if not os.path.isabs(cwd) or not os.path.isdir(cwd):
        raise RpcError(INVALID_PARAMS, f"cwd must be an absolute path of a directory that exists, not {cwd!r}")


def _page_start(cursor: str | None) -> int:
    """Return the number of the first session of a page. Raise RpcError for a cursor that no list returned."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise RpcError(INVALID_PARAMS, f"session/list: {cursor!r} is not a valid cursor")
    return int(cursor)


def _normal(path: str | None) -> str | None:
    return None if path is None else os.path.normpath(path)


def serve_stdio(
    config: Config,
    greeting: AcpGreeting,
    streams: GreetedStreams,
    *,
    overrides: ConfigOverrides,
    mode: str | None,
    connect: Callable[[bool], Client] | None = None,
) -> int:
    """Serve the client in an event loop of its own. Return the exit code.

    ``connect`` makes a client of the daemon whose sessions are served, which answers questions of tools or does not;
    without it they run in this process.
    """

    async def make(output: StreamWriter, resources: SharedResources) -> AcpServer:
        if connect is None:
            return AcpServer(config, greeting, output, OwnSessions(config, overrides, resources, mode=mode))
        from zot.serve.acp.daemon_sessions import EditorDaemonSessions  # Imported lazily: few editors use the daemon.

        return AcpServer(config, greeting, output, EditorDaemonSessions(connect, config.agent))

    return asyncio.run(serve_lines(make, streams))
