"""The daemon's process, from listening to the end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zot.config.configured_agents import AgentConfigs, daemon_journal
from zot.config.paths import DaemonPaths
from zot.errors import ConfigError, StoreFailed
from zot.journal.opening import is_address, open_journal
from zot.journal.recorded_sessions import SessionJournal
from zot.runtime.shared import SharedResources
from zot.serve.daemon.claim import Claim, hand_over
from zot.serve.daemon.lifecycle import BackgroundTasks, Notifier
from zot.serve.daemon.logs import LogFile, LogHandler
from zot.serve.daemon.sockets import LocalWire, keep_socket, listen
from zot.serve.stdio import leave
from zot.text import printable

if TYPE_CHECKING:
    from zot.config.file import Tls
    from zot.serve.daemon.daemon import Daemon, DaemonParts
    from zot.serve.web import Listening

log = logging.getLogger("zot")

#: Thread switch interval: short, since all sessions wait for the journal's thread.
_SWITCH_S = 0.001
#: Delay before the modules for sessions are imported: clients that wait for the daemon come first.
_LOAD_S = 0.1
#: The time for closing everything, after the grace period of runs.
_END_S = 10.0


async def serve(
    place: DaemonPaths,
    agents: AgentConfigs,
    claim: Claim,
    given: Mapping[str, Any],
    *,
    ephemeral: bool,
    listens: Sequence[tuple[str, Tls | None]],
    max_line_bytes: int,
    worker_pool: str = "",
) -> int:
    """Serve until the daemon is stopped; return the exit code. Always releases the endpoint."""
    sys.setswitchinterval(_SWITCH_S)
    notifier = Notifier(os.environ)
    handler = _log_to(place, agents)
    try:
        daemon = await _open_daemon(
            place, agents, given, ephemeral=ephemeral, max_line_bytes=max_line_bytes, worker_pool=worker_pool
        )
        parts = daemon.parts
        log.addHandler(daemon.log_feed)
        failure = _stop_on_journal_failure(daemon, parts.journal)
        _handle_signals(daemon, claim, notifier)
        leave_socket = await _listen(daemon, claim)
        async with BackgroundTasks() as chores:
            chores.start(_ping(notifier), "watchdog")
            chores.start(_guard_socket(daemon, claim, leave_socket), "staying")
            chores.start(_preload(daemon, given.get("provider", "")), "loading")
            chores.start(_warn_of_unusable_agents(daemon, parts), "warning")
            is_there = await _serve_until_stopped(daemon, parts, claim, notifier, listens)
        parts.audit.close()
        handler.close()
        await _pass_endpoint_on(claim, daemon, notifier)
    finally:
        claim.release()
    return 0 if is_there and not failure.is_set() else 1


def _stop_on_journal_failure(daemon: Daemon, journal: SessionJournal) -> asyncio.Event:
    """Stop the daemon when its journal fails for good, and set the event: a restarted daemon can serve again."""
    loop, failure = asyncio.get_running_loop(), asyncio.Event()

    def end(problem: StoreFailed) -> None:
        log.critical("the daemon ends, since nothing can be recorded: %s", problem)
        failure.set()
        daemon.stop(grace_s=0)

    def end_soon(problem: StoreFailed) -> None:
        loop.call_soon_threadsafe(end, problem)

    journal.when_failed(end_soon)
    return failure


async def _open_daemon(
    place: DaemonPaths,
    agents: AgentConfigs,
    given: Mapping[str, Any],
    *,
    ephemeral: bool,
    max_line_bytes: int,
    worker_pool: str,
) -> Daemon:
    """Open the journal and create the daemon."""
    loop = asyncio.get_running_loop()
    journal_address = daemon_journal(place, agents, given)
    opening = loop.create_task(open_journal(journal_address), name="zot journal")
    try:
        await asyncio.sleep(0)
        # Imported lazily: while the disk is at work.
        from zot.serve.daemon.audit import Audit
        from zot.serve.daemon.daemon import Daemon, DaemonParts

        audit = Audit(LogFile(os.path.join(place.logs, "audit.log")), soon=loop.call_soon)
        resources = SharedResources(own_process=True, serves_many=True)
        parts = DaemonParts(place, agents, journal=await opening, resources=resources, audit=audit, flags=given)
        if is_address(journal_address):
            from zot.serve.workspaces import Workspaces

            parts.worker_pool = worker_pool or "default"
            parts.workspaces = Workspaces(parts, checks_out=False)
        return Daemon(parts, ephemeral=ephemeral, max_line_bytes=max_line_bytes)
    except BaseException:
        opening.cancel()
        await asyncio.wait({opening})
        raise


async def _listen(daemon: Daemon, claim: Claim) -> Callable[[], None]:
    """Listen at the socket; return the function that stops listening."""
    leave_socket = await listen(daemon, claim.listener)
    gc.freeze()
    gc.enable()
    return leave_socket


async def _serve_until_stopped(
    daemon: Daemon,
    parts: DaemonParts,
    claim: Claim,
    notifier: Notifier,
    listens: Sequence[tuple[str, Tls | None]],
) -> bool:
    """Serve until the daemon is stopped, then wind down. False if an address could not be bound."""
    web: list[Listening] = []
    async with BackgroundTasks() as chores:
        chores.start(daemon.recover(patience_s=_LOAD_S), "recovery")
        chores.start(_watch(daemon), "watching")
        is_there = await _listen_elsewhere(daemon, claim, listens, web)
        if is_there:
            _announce(claim.path, *(one.url for one in web))
            notifier.ready(f"listening at {claim.path}")
        while not await _stopped(daemon, claim, notifier, web):
            pass
    await _wind_down(daemon, parts, web)
    return is_there


async def _stopped(daemon: Daemon, claim: Claim, notifier: Notifier, web: Sequence[Listening]) -> bool:
    """Wait until the daemon is stopped and its runs are over. False if it continues after all."""
    await daemon.stopped()
    log.info("the daemon is stopping")
    if daemon.has_no_successor:  # Otherwise new clients wait for the successor or for us, and the service continues.
        notifier.stopping()
        claim.close_others()
    for one in web:
        if daemon.has_no_successor:
            one.stop()
        else:
            one.server.pause()
    if await daemon.finish():
        return True
    for one in web:
        one.server.resume()
    return False


async def _preload(daemon: Daemon, provider: str) -> None:
    """Import the modules that requests need; later no descriptor may be left for it."""
    await asyncio.sleep(_LOAD_S)
    await daemon.sessions.preload(provider)


async def _warn_of_unusable_agents(daemon: Daemon, parts: DaemonParts) -> None:
    """Log the agents whose configuration is unusable. The others are served."""
    await daemon.greeted(_LOAD_S)

    for alias, problem in (await asyncio.to_thread(daemon.sessions.opener.unusable)).items():
        log.warning("agent %s cannot be used: %s", printable(alias), problem)
    await asyncio.to_thread(daemon.sessions.opener.check_sandbox)


async def _watch(daemon: Daemon) -> None:
    """Notify the subscribers of sessions of runs in other processes."""
    await daemon.greeted(_LOAD_S)
    await daemon.sessions.watch.run()


async def _guard_socket(daemon: Daemon, claim: Claim, leave_socket: Callable[[], None]) -> None:
    """Guard the socket."""
    await daemon.greeted(_LOAD_S)
    await keep_socket(daemon, claim, leave_socket)


async def _wind_down(daemon: Daemon, parts: DaemonParts, web: Sequence[Listening]) -> None:
    """Close everything within _END_S, then kill the rest."""
    try:
        async with asyncio.timeout(_END_S):
            await daemon.close(grace_s=0)
            for one in web:
                await one.close()
            await parts.resources.close()
            await parts.journal.close()
    except TimeoutError:
        log.warning("the daemon exited before everything was closed")
        parts.resources.kill()


async def _listen_elsewhere(
    daemon: Daemon, claim: Claim, listens: Sequence[tuple[str, Tls | None]], web: list[Listening]
) -> bool:
    """Listen at the other addresses, too; if one cannot be bound, stop the daemon and return False.

    The web server is imported while the socket already answers. Sockets that were handed over and are not needed are
    closed first: they could block an address.
    """
    if not listens:
        claim.close_others()
        return True
    await asyncio.to_thread(import_module, "zot.serve.web")
    from zot.serve import web as web_server  # Imported lazily: an extra.

    try:
        claim.close_others(but=await web_server.matching(claim.others, [url for url, _ in listens]))
        for url, tls in listens:
            daemon.parts.private += () if tls is None else tls.files
            web.append(await web_server.listen(daemon, url, tls=tls, inherited=claim.others))
    except ConfigError as problem:
        log.critical("%s", problem)
        daemon.stop()
        return False
    claim.close_others()
    claim.others += [one.listener.dup() for one in web]
    return True


def _announce(*places: str) -> None:
    """Report all addresses, once all are served."""
    for place in places:
        sys.stderr.write(f"zot: the daemon listens at {place}\n")
    log.info("the daemon %d listens at %s", os.getpid(), places[0])


async def _pass_endpoint_on(claim: Claim, daemon: Daemon, notifier: Notifier) -> None:
    """Hand the endpoint to the successor that waits for it, or release it."""
    successor = daemon.successor
    if successor is None or not isinstance(successor.wire, LocalWire) or not await _handed_over(claim, successor.wire):
        claim.release()
    elif successor.who.pid:
        notifier.succeeded_by(successor.who.pid)


async def _handed_over(claim: Claim, wire: LocalWire) -> bool:
    """Hand the endpoint to the process at the other end. False if that has gone, or is too slow."""
    try:
        async with asyncio.timeout(_END_S):
            connection = await wire.release()
        return hand_over(claim, connection)
    except OSError:
        return False


def _log_to(place: DaemonPaths, agents: AgentConfigs) -> LogHandler:
    """Log to the file that `zot daemon logs` reads, and warnings to standard error, too."""
    handler = LogHandler(LogFile(os.path.join(place.logs, "daemon.log")))
    log.setLevel(agents.file.daemon.log_level.upper())
    log.addHandler(handler)
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(logging.Formatter("zot: %(message)s"))
    to_stderr.setLevel(logging.WARNING)
    log.addHandler(to_stderr)
    return handler


def _handle_signals(daemon: Daemon, claim: Claim, notifier: Notifier) -> None:
    loop = asyncio.get_running_loop()
    asked = 0

    def end() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            claim.release()
            leave(1)
        daemon.stop()

    def reload() -> None:
        notifier.reloading()
        try:
            daemon.reload()
        except ConfigError as problem:
            log.warning("the configuration was not changed: %s", problem)
        notifier.ready(f"listening at {claim.path}")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    loop.add_signal_handler(signal.SIGHUP, reload)


async def _ping(notifier: Notifier) -> None:
    """Ping systemd's watchdog at the interval that it asks for."""
    while (every_s := notifier.ping_every_s) is not None:
        notifier.ping()
        await asyncio.sleep(every_s)
