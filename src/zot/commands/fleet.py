"""`zot fleet`: look at gateways' prompts and workers in PostgreSQL."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from zot.commands.subcommands import JSON_FLAG, CommandGroup, CommandRequest, Subcommand, aligned, write, write_json
from zot.config.config import STORE_FLAG, Config, journal_path
from zot.errors import UsageError
from zot.fleet.status import status_of_fleet
from zot.journal.opening import is_address, open_journal


def _status(request: CommandRequest) -> int:
    path = journal_path(Config(journal=request.settings.get("journal")))
    if not is_address(path):
        raise UsageError("zot fleet needs a database: add --store postgresql://…, or set ZOT_STORE")
    return asyncio.run(_show(path, as_json="json" in request.settings))


async def _show(path: str, *, as_json: bool) -> int:
    journal = await open_journal(path)
    try:
        status = await journal.reading(status_of_fleet)
    finally:
        await journal.close()
    if as_json:
        write_json(status)
        return 0
    heartbeats = ", ".join(f"{age:.1f} s ago" for age in status.workers) or "none"
    write(f"workers    {len(status.workers)}; heartbeats: {heartbeats}\n")
    lag = f", the longest for {status.takeover_lag_s:.1f} s" if status.abandoned else ""
    write(f"sessions   {status.sessions}; {status.leased} run, {status.abandoned} wait to be taken over{lag}\n")
    lag = f", the oldest for {status.request_lag_s:.1f} s" if status.requests else ""
    write(f"requests   {status.requests} wait for a worker{lag}\n")
    if status.pools:
        rows = [[pool.name, str(pool.waiting), str(pool.running), f"{pool.oldest_s:.1f} s"] for pool in status.pools]
        write("\n" + aligned([["pool", "waiting", "running", "oldest"], *rows]))
    return 0


GROUP = CommandGroup("zot fleet", "Inspect sessions on many machines.", (
    Subcommand("status", "", "Show workers, sessions, and the prompts and requests that wait.", _status),
), flags=(replace(STORE_FLAG, advanced=False), JSON_FLAG), examples=(
    ("zot fleet status --store postgresql://zot@db/sessions", "See whether prompts wait for workers."),
))  # fmt: skip
main = GROUP.main
