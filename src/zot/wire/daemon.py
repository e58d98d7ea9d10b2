"""The daemon's method table. Does no I/O.

Documentation, capabilities, schema and dispatch all derive from `METHODS`. The table names the structs of parameters
and results. Those of `initialize` are here; the others are in `daemon_types`, which is imported on first use, so that
`initialize` is answered without it. A session's updates are in `updates`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec

from zot.encoding import UNREADABLE
from zot.text import did_you_mean
from zot.wire.jsonrpc import (
    METHOD_NOT_FOUND,
    NOT_INITIALIZED,
    NOT_OWNED,
    SESSION_BUSY,
    SESSION_LIMIT,
    SESSION_NOT_FOUND,
    VERSION_MISMATCH,
    RpcError,
    encode_error,
    encode_result,
)
from zot.wire.spelling import Spelled, Spelling, read, spelled

PROTOCOL_VERSION: Final = 1
#: Features that a client may enable with `initialize`.
#: Every event, as zot RPC spells it, instead of updates.
EVENTS: Final = "events"
#: Updates repeat a prompt's id. Always on here: the answer lets clients recognise daemons that do not.
PROMPT_IDS: Final = "prompt_ids"
#: Notify the client before the daemon stops, so that it sends its next prompt to the next daemon, and if it resumes.
STOPPING: Final = "stopping"
#: With `events`: the client answers questions of tools with `session/answer`. Without such a client they are declined.
QUESTIONS: Final = "questions"
FEATURES: Final = (EVENTS, PROMPT_IDS, STOPPING, QUESTIONS)
#: The notifications of the feature `stopping`.
TELLS_STOPPING: Final = "daemon/stopping"
TELLS_RESUMED: Final = "daemon/resumed"

Scope: TypeAlias = Literal["open", "server", "session"]
#: What a client must be allowed to call a method: nothing in particular, one of a token's roles, or `operate`, which
#: the local socket alone has.
Role: TypeAlias = Literal["any", "view", "prompt", "approve", "operate"]
#: Roles of tokens. `self_approve` extends `approve` to runs that the same token prompted; `extend` is for `/ext`.
ROLES: Final = ("view", "prompt", "approve", "self_approve", "extend")
_MAX_NAME: Final = 100


class Grant(msgspec.Struct, frozen=True):
    """What a connection may do: its roles, and the sessions to which it is bound, None for all.

    ``name`` is that of its token, "" on the local socket; ``digest`` identifies the token. It is valid until
    ``expires``, in seconds since the epoch.
    """

    name: str = ""
    roles: frozenset[str] = frozenset(ROLES)
    sessions: frozenset[str] | None = None
    expires: float | None = None
    digest: str = ""

    def may(self, role: str) -> bool:
        """True if it has a role."""
        return role == "any" or role in self.roles

    def sees(self, session_id: str) -> bool:
        """True if it is bound to no sessions, or to this one too."""
        return self.sessions is None or session_id in self.sessions

    def is_over(self, now: float) -> bool:
        """True after its end date."""
        return self.expires is not None and now >= self.expires


#: Clients at the local socket have the daemon's own uid, and may do everything.
OPERATOR: Final = Grant(roles=frozenset({*ROLES, "operate"}))


class Dialect(enum.Enum):
    """What the daemon sends on a connection: updates in one of two spellings, or events as zot RPC spells them."""

    CAMEL = "camelCase"
    SNAKE = "snake_case"
    EVENTS = "events"


def dialect_of(spelling: Spelling, features: Collection[str]) -> Dialect:
    """Return the dialect of a connection with this spelling and these enabled features."""
    return Dialect.EVENTS if EVENTS in features else Dialect(spelling.value)


class ClientName(Spelled, frozen=True):
    """The name and version of the client's program."""

    name: str = ""
    version: str = ""


class Initialize(Spelled, frozen=True):
    """Identifies the client and the protocol version and features that it supports.

    Released clients also send their whole environment. The daemon ignores it, so that it cannot leak.
    """

    protocol_version: int = 1
    features: tuple[str, ...] = ()
    client: ClientName = ClientName()
    client_capabilities: dict[str, Any] | None = None


class Initialized(Spelled, frozen=True, kw_only=True):
    """``capabilities`` are the methods that this connection may call, ``features`` the enabled features.

    ``max_line_bytes`` is the longest line that the daemon reads, if that differs from 16 MiB.
    """

    protocol_version: int
    server_version: str
    server_pid: int
    capabilities: tuple[str, ...]
    features: tuple[str, ...] = ()
    endpoint: str | msgspec.UnsetType = msgspec.UNSET
    tui_id: str | msgspec.UnsetType = msgspec.UNSET
    max_line_bytes: int | msgspec.UnsetType = msgspec.UNSET


class Method(msgspec.Struct, frozen=True):
    """A method that clients may call.

    ``takes`` and ``answers`` name the structs of its parameters and result. ``role`` is what the caller must have.
    ``scope`` is ``open`` if it may precede `initialize`, ``session`` if it concerns one session. ``errors`` are its own
    codes, besides those of every method. ``whole`` is True if its result concerns all sessions and cannot be limited to
    those of a token.
    """

    name: str
    role: Role
    takes: str
    answers: str
    summary: str
    errors: tuple[int, ...] = ()
    scope: Scope = "session"
    whole: bool = False

    @property
    def local(self) -> bool:
        """True if it can be called over the local socket only."""
        return self.role == "operate"

    @property
    def params(self) -> type[msgspec.Struct]:
        """The struct of its parameters."""
        return _struct(self.takes)

    @property
    def result(self) -> type[msgspec.Struct]:
        """The struct of its result."""
        return _struct(self.answers)


@cache
def _struct(name: str) -> type[msgspec.Struct]:
    if name in _OF_INITIALIZE:
        return _OF_INITIALIZE[name]
    from zot.wire import daemon_types  # Imported lazily: `initialize` needs only the names of other methods.

    found: type[msgspec.Struct] = getattr(daemon_types, name)
    return found


_OF_INITIALIZE: Final[Mapping[str, type[msgspec.Struct]]] = {"Initialize": Initialize, "Initialized": Initialized}


def _server(name: str, role: Role, takes: str, answers: str, summary: str, *, whole: bool = False) -> Method:
    return Method(name, role, takes, answers, summary, (), "server", whole)


#: Error codes of methods that read a session, change it without loading it, load it, or load and change it.
_READS: Final = (SESSION_NOT_FOUND,)
_CHANGES_STORED: Final = (SESSION_NOT_FOUND, NOT_OWNED)
_LOADS: Final = (SESSION_NOT_FOUND, SESSION_LIMIT, NOT_OWNED)
_CHANGES: Final = (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY, NOT_OWNED)

_DECLARED: Final = (
    Method(
        "initialize",
        "any",
        "Initialize",
        "Initialized",
        "Negotiates the version and the features; the first call of every connection, allowed again at any time.",
        (VERSION_MISMATCH,),
        "open",
    ),
    Method(
        "session/new",
        "prompt",
        "New",
        "Opened",
        "Creates a session of an agent, or resumes the one with this id; its updates follow.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
    ),
    Method(
        "session/prompt",
        "prompt",
        "Prompt",
        "Prompted",
        "Runs a turn and answers when it has ended; as a notification it runs as well.",
        _CHANGES,
    ),
    Method(
        "session/steer",
        "prompt",
        "Steer",
        "Steered",
        "Adds a message to the running turn before its next model call; a prompt when none runs.",
        _CHANGES,
    ),
    Method(
        "session/aside",
        "prompt",
        "Ask",
        "Answered",
        "Answers a side question from the conversation, even during a turn; it does not become part of it. No tools.",
        _LOADS,
    ),
    Method(
        "session/take_back",
        "prompt",
        "TakeBack",
        "TakenBack",
        "Withdraws a queued prompt or a steering message; refused once the model has it. Aborts a side question.",
        _LOADS,
    ),
    Method(
        "session/cancel",
        "prompt",
        "OfSession",
        "Cancelled",
        "Aborts the running turn and drops messages that steer it; nothing to cancel is an error.",
        (SESSION_NOT_FOUND, SESSION_BUSY),
    ),
    Method(
        "session/approve",
        "approve",
        "Approve",
        "Approved",
        "Answers an `approval_request`; the first answer counts.",
        _CHANGES,
    ),
    Method(
        "session/answer",
        "approve",
        "AnswerQuestion",
        "QuestionAnswered",
        "Answers a `question_request` of a tool; the first answer counts.",
        _CHANGES,
    ),
    Method(
        "session/attach",
        "view",
        "Attach",
        "Attached",
        "Subscribes to a session: replays the updates after a number, then sends live ones.",
        (SESSION_NOT_FOUND, SESSION_LIMIT),
    ),
    Method("session/detach", "view", "OfSession", "Detached", "Unsubscribes from a session.", _READS),
    Method(
        "session/close",
        "prompt",
        "OfSession",
        "Closed",
        "Ends the run of a session and closes it; until `session/new` resumes it, also after a restart of the daemon,"
        " it can be read, attached to and deleted.",
        (SESSION_NOT_FOUND, SESSION_BUSY, NOT_OWNED),
    ),
    Method(
        "session/kill",
        "prompt",
        "OfSession",
        "Killed",
        "Does what `session/close` does, without waiting for the run to end.",
        (SESSION_NOT_FOUND, SESSION_BUSY, NOT_OWNED),
    ),
    Method(
        "session/delete",
        "prompt",
        "OfSession",
        "Deleted",
        "Deletes a session; one that does not exist counts as deleted.",
        (SESSION_BUSY, NOT_OWNED),
    ),
    Method(
        "session/list",
        "view",
        "List",
        "Sessions",
        "Lists the sessions, the latest first; with `query`, those whose messages contain these words.",
    ),
    Method(
        "session/list-acp",
        "view",
        "List",
        "Sessions",
        "The same as `session/list`, under a name that released clients use.",
    ),
    Method(
        "session/messages",
        "view",
        "Messages",
        "MessagePage",
        "Returns the conversation, or a page of it; empty for a session that does not exist.",
    ),
    Method("session/state", "view", "OfSession", "State", "Returns the state of a session.", _READS),
    Method("session/context", "view", "OfSession", "ContextUse", "Returns what fills the model's window.", _READS),
    Method(
        "session/fork",
        "prompt",
        "Fork",
        "Opened",
        "Copies a session, or its first messages, into a new one.",
        _CHANGES,
    ),
    Method(
        "session/configure",
        "prompt",
        "Configure",
        "Configured",
        "Changes the model or its reasoning, from the next model call on; the provider between two turns.",
        _CHANGES,
    ),
    Method(
        "session/compact",
        "prompt",
        "OfSession",
        "Compacted",
        "Replaces the older part of the conversation by a summary, for the model.",
        _CHANGES,
    ),
    Method(
        "session/undo_compact",
        "prompt",
        "OfSession",
        "CompactUndone",
        "Restores the messages that the newest compaction replaced; those said since follow them.",
        _CHANGES,
    ),
    Method(
        "session/rewind",
        "prompt",
        "Rewind",
        "Rewound",
        "Goes back to an earlier point and restores the files that tools changed since, or previews what would change.",
        _CHANGES,
    ),
    Method("session/clear", "prompt", "OfSession", "Cleared", "Clears the conversation.", _CHANGES),
    Method("session/rename", "prompt", "Rename", "Renamed", "Gives a session a title.", _CHANGES_STORED),
    Method("session/models", "view", "ListModels", "Models", "Lists the models that a session can use.", _READS),
    Method("session/allowed", "view", "OfSession", "AllowedCalls", "Lists the calls that are always allowed.", _READS),
    Method(
        "session/forget", "approve", "Forget", "Forgotten", "Revokes a permission to always allow a call.", _CHANGES
    ),
    Method(
        "session/dismiss",
        "operate",
        "Dismiss",
        "Dismissed",
        "Dismisses a guard that had connected to the session and is gone: it blocks nothing more.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
    ),
    Method(
        "session/lock",
        "operate",
        "Lock",
        "Lock",
        "Locks the tools of a session to its directory, or unlocks them, between two turns; it is recorded.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
    ),
    Method(
        "session/reload",
        "operate",
        "OfSession",
        "Reloaded",
        "Reloads the extensions of a session between two turns: all of them, or none.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
    ),
    Method("session/commands", "view", "OfSession", "Commands", "Lists the slash commands of extensions.", _READS),
    Method(
        "session/resources",
        "prompt",
        "OfSession",
        "Resources",
        "Lists the resources of MCP servers that prompts can mention.",
        _CHANGES_STORED,
    ),
    Method(
        "session/run_command",
        "prompt",
        "RunCommand",
        "CommandRun",
        "Runs a slash command of an extension and answers when the extension has answered.",
        _LOADS,
    ),
    Method("session/panel_key", "prompt", "PanelKey", "PanelTold", "Sends a key to a panel.", _LOADS),
    Method("session/panel_close", "prompt", "PanelClose", "PanelTold", "Closes a panel.", _LOADS),
    Method(
        "session/extensions",
        "view",
        "OfSession",
        "ExtensionEntries",
        "Lists the extensions of a session with their states.",
        _READS,
    ),
    Method(
        "session/files",
        "prompt",
        "FindFiles",
        "FoundFiles",
        "Finds files below the directory of a session by letters of their paths, for a mention in a prompt.",
        _CHANGES_STORED,
    ),
    Method(
        "session/image",
        "view",
        "FindImage",
        "FoundImage",
        "Returns an image of a conversation, which messages and events only mention.",
        _READS,
    ),
    Method(
        "session/git_branch",
        "view",
        "OfSession",
        "GitBranch",
        "Returns the git branch in the directory of a session.",
        _READS,
    ),
    _server(
        "sessions/watch",
        "view",
        "Nothing",
        "Watching",
        "Subscribes to what all sessions do: `sessions/changed` is sent when one starts, waits, is answered or ends.",
    ),
    _server("agents/list", "view", "Nothing", "Agents", "Lists the agents that sessions can be created from."),
    _server("agents/status", "view", "Nothing", "Agents", "The same as `agents/list`."),
    _server(
        "status",
        "view",
        "Nothing",
        "Status",
        "Returns the daemon's versions, places and loaded sessions.",
    ),
    _server("health", "view", "Nothing", "Health", "Returns the health of the daemon: memory, uptime, failures."),
    _server("tui/list", "view", "Nothing", "Clients", "Lists the connections."),
    _server("cost/query", "view", "CostQuery", "Costs", "Returns tokens and cost, by model, by agent and by day."),
    _server(
        "audit/recent", "view", "RecentAudit", "AuditLines", "Returns the newest lines of the audit log.", whole=True
    ),
    _server(
        "logs/subscribe",
        "view",
        "Nothing",
        "Subscribed",
        "Subscribes to the log: new lines are sent as `logs/event`.",
        whole=True,
    ),
    _server("config/list", "view", "ConfigList", "ConfigEntries", "Lists settings for a client to show; always empty."),
    _server("config/sections", "view", "Nothing", "Sections", "Lists forms for a client to show; always empty."),
    _server("config/templates", "view", "Nothing", "Templates", "Lists templates for a client to show; always empty."),
    _server(
        "config/reload",
        "operate",
        "Nothing",
        "Reloading",
        "Reads the configuration again, for new and idle sessions; busy ones keep theirs until they are idle.",
    ),
    _server(
        "host/respond",
        "operate",
        "HostRespond",
        "HostAnswered",
        "Answers one request of the host protocol, in its own spelling on every connection.",
    ),
    _server(
        "host/delivered",
        "operate",
        "HostDelivered",
        "Noted",
        "Confirms that the answer to a request of the host protocol was delivered.",
    ),
    _server("daemon/stop", "operate", "Stop", "Stopping", "Stops the daemon; open approvals are kept."),
)

METHODS: Final[Mapping[str, Method]] = MappingProxyType({method.name: method for method in _DECLARED})

#: Methods that only read.
READ_ONLY: Final = frozenset(
    {
        "status",
        "health",
        "agents/list",
        "agents/status",
        "tui/list",
        "cost/query",
        "audit/recent",
        "config/list",
        "config/sections",
        "config/templates",
        "session/list",
        "session/list-acp",
        "session/messages",
        "session/state",
        "session/context",
        "session/git_branch",
        "session/commands",
        "session/resources",
        "session/extensions",
        "session/files",
        "session/image",
        "session/models",
        "session/allowed",
    }
)


def capabilities(grant: Grant) -> tuple[str, ...]:
    """Return the names of the methods that a connection may call."""
    return tuple(method.name for method in METHODS.values() if _may_call(grant, method))


#: Not for tokens that are bound to sessions: one could create the session anew, without its lock, guards and directory.
_UNBOUND: Final = "session/delete"


def _may_call(grant: Grant, method: Method) -> bool:
    is_refused = grant.sessions is not None and (method.whole or method.name == _UNBOUND)
    return grant.may(method.role) and not is_refused


def find(name: str, *, initialized: bool, grant: Grant) -> Method:
    """Return the method of this name. Raise RpcError if it is unknown or this connection may not call it (yet)."""
    method = METHODS.get(name)
    shown = name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, f"Unknown method: {shown}{did_you_mean(shown, METHODS)}")
    if method.local and not grant.may("operate"):
        raise RpcError(METHOD_NOT_FOUND, f"Unknown method: {shown}: it can be called over the local socket only")
    if not initialized and method.scope != "open":
        raise RpcError(NOT_INITIALIZED, "First call must be 'initialize'")
    if not grant.may(method.role):
        raise RpcError(
            NOT_OWNED, f"{name} needs the role {method.role!r}, which the token {grant.name!r} does not have"
        )
    if not _may_call(grant, method) and name == _UNBOUND:
        raise RpcError(
            NOT_OWNED, f"{name}: the token {grant.name!r} is bound to sessions, and deletes none; close them"
        )
    if not _may_call(grant, method):
        raise RpcError(NOT_OWNED, f"{name} is about all sessions, and the token {grant.name!r} is bound to some")
    return method


def check_sessions(grant: Grant, method: Method, params: Any) -> None:
    """Raise RpcError if the parameters name a session to which the caller's token is not bound, or none to create.

    The answer does not tell whether such a session exists.
    """
    if grant.sessions is None:
        return
    for field in ("session_id", "new_session_id"):
        given: str | None = getattr(params, field, None)
        if hasattr(params, field) and (not given or given not in grant.sessions):
            shown = f" {given[:_MAX_NAME]!r}" if given else ""
            raise RpcError(
                NOT_OWNED,
                f"{method.name}: the token {grant.name!r} is bound to certain sessions, and{shown or ' none'} is not"
                " one of them",
            )


def read_params(method: Method, raw: msgspec.Raw, spelling: Spelling = Spelling.CAMEL) -> Any:
    """Decode the parameters, in either spelling, as ``method.params``.

    Raise RpcError, naming fields in ``spelling``; for `initialize`, in the spelling of the call itself.
    """
    return read(method.params, raw, spelling_of(raw) if method.name == "initialize" else spelling)


def check_version(asked: Initialize) -> None:
    """Raise RpcError if the client's protocol version is not supported."""
    client = asked.protocol_version
    if client != PROTOCOL_VERSION:
        raise RpcError(
            VERSION_MISMATCH,
            f"Protocol version mismatch: server={PROTOCOL_VERSION}, client={client}",
            {"server": PROTOCOL_VERSION, "client": client},
        )


def spelling_of(raw: msgspec.Raw) -> Spelling:
    """Return the spelling of a connection whose `initialize` has these parameters."""
    try:
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return Spelling.CAMEL
    return Spelling.SNAKE if "protocol_version" in given else Spelling.CAMEL


def encode_result_in(spelling: Spelling, id: msgspec.Raw, result: msgspec.Struct) -> bytes:  # noqa: A002
    """Return the reply to a request, with its keys in this spelling."""
    return encode_result(id, spelled(spelling, result))


def encode_error_in(spelling: Spelling, id: msgspec.Raw, error: RpcError) -> bytes:  # noqa: A002
    """Return the error reply to a request, with its data in this spelling."""
    return encode_error(id, RpcError(error.code, error.message, spelled(spelling, error.data)))
