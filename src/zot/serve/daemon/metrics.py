"""Metrics of the daemon in Prometheus format."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zot.fleet.status import FleetStatus

#: Help texts. Counters only grow; gauges are current values.
_HELP: Mapping[str, str] = {
    "connections": "Clients that have connected.",
    "calls": "Methods that were called, without those that only read.",
    "errors": "Calls that were answered with an error.",
    "runs": "Runs of sessions that have ended, in any way; see responses for the host protocol.",
    "responses": "Requests of the host protocol that were answered.",
    "updates": "Updates of sessions that were sent, to each client.",
    "update_bytes": "Their size.",
    "cut_off": "Clients that were disconnected because they did not read.",
    "refused": "Connections, requests and messages that were refused.",
}
_GAUGES: Mapping[str, str] = {
    "clients": "Clients that are connected.",
    "sessions": "Sessions that are loaded.",
    "running": "Sessions that are running.",
    "journal_bytes": "Size of the journal, with its write-ahead file.",
    "rss_bytes": "Memory that the process uses.",
    "uptime_seconds": "How long the daemon has been running.",
}


#: Gauges of a gateway: its whole fleet, as the database has it.
_FLEET: Mapping[str, str] = {
    "workers": "Workers that have registered and not left.",
    "heartbeat_age_seconds": "Age of the oldest last heartbeat of a worker.",
    "sessions": "Sessions that are recorded.",
    "leases": "Sessions that a worker runs.",
    "abandoned": "Sessions that wait to be taken over.",
    "takeover_lag_seconds": "How long the longest of them has waited.",
    "requests": "Aborts, steering messages and answers that wait for a worker.",
    "request_lag_seconds": "How long the oldest of them has waited.",
}
_POOLS: Mapping[str, str] = {
    "prompts_waiting": "Prompts that wait for a worker.",
    "prompts_running": "Prompts that run.",
    "prompt_age_seconds": "How long the oldest waiting prompt has waited.",
}


class Metrics:
    """Counters of the daemon; callers increment them."""

    def __init__(self) -> None:
        self.connections = 0
        self.calls = 0
        self.errors = 0
        self.runs = 0
        self.responses = 0
        self.updates = 0
        self.update_bytes = 0
        self.cut_off = 0
        self.refused = 0

    def exposition(self, gauges: Mapping[str, float]) -> str:
        """Return all counters and ``gauges`` in Prometheus' text format."""
        lines: list[str] = []
        for name, about in _HELP.items():
            lines += _lines(f"zot_{name}_total", "counter", about, getattr(self, name))
        for name, about in _GAUGES.items():
            lines += _lines(f"zot_{name}", "gauge", about, gauges[name])
        return "\n".join(lines) + "\n"


def fleet_exposition(status: FleetStatus) -> str:
    """Return the state of a fleet in Prometheus' text format."""
    values = {
        "workers": len(status.workers),
        "heartbeat_age_seconds": max(status.workers, default=0.0),
        "sessions": status.sessions,
        "leases": status.leased,
        "abandoned": status.abandoned,
        "takeover_lag_seconds": status.takeover_lag_s,
        "requests": status.requests,
        "request_lag_seconds": status.request_lag_s,
    }
    lines = [
        line for name, about in _FLEET.items() for line in _lines(f"zot_fleet_{name}", "gauge", about, values[name])
    ]
    pools = {pool.name: (pool.waiting, pool.running, pool.oldest_s) for pool in status.pools}
    for at, (name, about) in enumerate(_POOLS.items()):
        lines += [f"# HELP zot_fleet_{name} {about}", f"# TYPE zot_fleet_{name} gauge"]
        lines += [f'zot_fleet_{name}{{pool="{_label(pool)}"}} {found[at]:.15g}' for pool, found in pools.items()]
    return "\n".join(lines) + "\n"


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def size_of_database(path: str) -> int:
    """Return the size of a database on disk with its write-ahead log; 0 if it does not exist."""
    total = 0
    for name in (path, f"{path}-wal"):
        try:
            total += os.stat(name).st_size
        except OSError:  # It does not exist now.
            continue
    return total


def _lines(name: str, kind: str, about: str, value: float) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}", f"{name} {value:.15g}"]
