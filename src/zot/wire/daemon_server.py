"""The daemon's dialect, about the daemon itself: what its methods take and answer. Does no I/O.

What `initialize` takes and answers is in `daemon_greeting`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from zot.wire import host
from zot.wire.spelling import Spelled

Absent: TypeAlias = msgspec.UnsetType
ABSENT = msgspec.UNSET
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class Nothing(Spelled, frozen=True):
    """A method that takes nothing; what is given is ignored."""


class Status(Spelled, frozen=True, kw_only=True):
    """``listens`` are the addresses besides the local endpoint."""

    server_version: str
    protocol_version: int
    active_sessions: int
    session_ids: tuple[str, ...]
    server_pid: int | Absent = ABSENT
    uptime_seconds: int | Absent = ABSENT
    clients: int | Absent = ABSENT
    config_dir: str | Absent = ABSENT
    config_file: str | Absent = ABSENT
    config_kind: Literal["default", "custom", "temporary"] | Absent = ABSENT
    local_ipc_endpoint: str | Absent = ABSENT
    listens: tuple[str, ...] | Absent = ABSENT
    data_dir: str | Absent = ABSENT


class Component(Spelled, frozen=True, kw_only=True):
    status: Literal["ok", "error"]
    updated_at: str
    last_ok: str | None = None
    last_error: str | None = None
    restart_count: int = 0


class Process(Spelled, frozen=True, kw_only=True):
    rss_bytes: int
    system_ram_total_bytes: int
    num_cpus: int
    cpu_percent: float | None = None


class Health(Spelled, frozen=True, kw_only=True):
    pid: int
    updated_at: str
    uptime_seconds: int
    components: dict[str, Component]
    process: Process


class AgentEntry(Spelled, frozen=True, kw_only=True):
    """A named configuration. ``channels`` is always empty: released clients read it."""

    alias: str
    enabled: bool = True
    channels: tuple[str, ...] = ()
    provider: str = ""
    model: str = ""
    live_sessions: int = 0
    persisted_sessions: int = 0


class Agents(Spelled, frozen=True):
    agents: tuple[AgentEntry, ...]


class Subscribed(Spelled, frozen=True):
    subscribed: bool = True


class LogService(msgspec.Struct, frozen=True):
    name: str
    version: str


class LogHappening(msgspec.Struct, frozen=True):
    category: str
    action: str
    outcome: str | Absent = ABSENT


class LogEvent(msgspec.Struct, frozen=True, kw_only=True, rename={"timestamp": "@timestamp"}):
    """One line of the log, as `logs/event` carries it. In this spelling on every connection."""

    id: str
    timestamp: str
    severity_number: Literal[1, 5, 9, 13, 17]
    severity_text: str
    event: LogHappening
    service: LogService
    message: str
    attributes: dict[str, Any] | Absent = ABSENT
    schema_version: int = 2


class Reloading(Spelled, frozen=True):
    """``agents`` are the aliases that there are by now."""

    agents: tuple[str, ...]
    reloading: bool = True


class ConfigList(Spelled, frozen=True):
    prefix: str = ""


class ConfigEntries(Spelled, frozen=True):
    entries: tuple[dict[str, Any], ...] = ()


class Sections(Spelled, frozen=True):
    sections: tuple[dict[str, Any], ...] = ()


class Templates(Spelled, frozen=True):
    templates: tuple[dict[str, Any], ...] = ()


class ClientEntry(Spelled, frozen=True, kw_only=True):
    """A connection. ``peer_label`` says who is at its other end, ``transport`` by which way it came."""

    tui_id: str
    connected_at: str
    connected_at_unix: int
    peer_label: str
    transport: str


class Clients(Spelled, frozen=True):
    tuis: tuple[ClientEntry, ...]


class CostQuery(Spelled, frozen=True, rename={"since": "from", "until": "to"}):
    agent: str | None = None
    since: str | None = None
    until: str | None = None


class Spending(Spelled, frozen=True):
    """What so many model calls used. One whose price is not known costs nothing here."""

    cost_usd: float = 0.0
    total_tokens: int = 0
    request_count: int = 0

    def __add__(self, other: Spending) -> Spending:
        return Spending(
            self.cost_usd + other.cost_usd,
            self.total_tokens + other.total_tokens,
            self.request_count + other.request_count,
        )


class Costs(Spelled, frozen=True, kw_only=True):
    session_cost_usd: float = 0.0
    daily_cost_usd: float = 0.0
    monthly_cost_usd: float = 0.0
    total_tokens: int = 0
    request_count: int = 0
    by_model: dict[str, Spending] = {}  # noqa: RUF012
    by_agent: dict[str, Spending] = {}  # noqa: RUF012


class HostRespond(host.Request, frozen=True, rename={"age_ms": "ageMs"}):
    """A request of the host protocol, how long ago it was made, and how many were before it where it was given back."""

    age_ms: Seconds | None = None
    ahead: Annotated[int, msgspec.Meta(ge=0)] | None = None


class HostAnswered(msgspec.Struct, frozen=True):
    """The answer as the host protocol has it, and the exit code that goes with it."""

    response: host.Response
    code: int = 0


class HostDelivered(Spelled, frozen=True):
    """The answer to a request got out: it need not be given again for long."""

    request_id: str


class Noted(Spelled, frozen=True):
    noted: bool = True


class Stop(Spelled, frozen=True):
    """``grace_s`` is how long what runs may go on. With ``handover``, the caller takes the endpoint over."""

    grace_s: Seconds | None = None
    handover: bool = False


class Stopping(Spelled, frozen=True):
    """``grace_s`` is how long what runs may go on: whoever waits for the end waits for that, too."""

    stopping: bool = True
    grace_s: float = 0.0
