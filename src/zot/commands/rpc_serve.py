"""The session of `zot rpc`, from its first prompt to the end of the input."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zot.config.config import Config, Overrides
from zot.runtime.open import OpenRequest, open_session
from zot.runtime.shared import SharedResources
from zot.serve.lifetime import Lifetime, close_in_time, report_write_failure, wind_down
from zot.serve.rpc import NotAuthorized, RpcServer
from zot.serve.streams import StreamWriter, pump, read_chunks
from zot.wire.lines import LineSplitter, TooLong
from zot.wire.rpc_greeting import Greeting

if TYPE_CHECKING:
    from zot.session.session import Session


def run(
    config: Config,
    greeting: Greeting,
    lines: LineSplitter,
    waiting: Sequence[bytes | TooLong],
    descriptors: tuple[int, int],
    *,
    overrides: Overrides,
) -> int:
    """Serve the client in an event loop of its own. Return the exit code."""
    request = OpenRequest(config=config, overrides=overrides)
    return asyncio.run(_serve(request, greeting, lines, waiting, descriptors))


async def _serve(
    request: OpenRequest,
    greeting: Greeting,
    lines: LineSplitter,
    waiting: Sequence[bytes | TooLong],
    descriptors: tuple[int, int],
) -> int:
    """Serve the client until its input ends, a signal arrives, or it stops reading. Return the exit code."""
    incoming, outgoing = descriptors
    output = StreamWriter(outgoing)
    lifetime = Lifetime(outgoing)
    output.on_broken(lifetime.end)
    resources = SharedResources(own_process=True)
    session: Session | None = None

    async def converse() -> None:
        nonlocal session
        session = opened = await open_session(request, resources)
        greeting.provider = opened.agent.provider.name
        greeting.model = lambda: opened.agent.model.id
        server = RpcServer(opened, greeting, output)
        for line in waiting:
            server.take(line)
        await pump(read_chunks(incoming), lines, server.take, output)
        lifetime.input_ended = True
        server.end_input()
        await server.finish()
        await opened.worker.finish()
        await output.drained()

    code = 0
    try:
        if await lifetime.bound(converse()) and session is not None:
            await close_in_time(session, lifetime)
    except NotAuthorized as problem:
        sys.stderr.write(f"zot: rpc: {problem}\n")
        code = 1
    if session is not None:
        await wind_down(session, resources, output)
    output.close()
    return code if output.problem is None else report_write_failure(output.problem)
