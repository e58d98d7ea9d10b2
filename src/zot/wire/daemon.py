"""The daemon's method table. Does no I/O.

Documentation, capabilities, schema and dispatch all derive from `METHODS`. The table names the structs of parameters
and results, which are in `daemon_greeting` and `daemon_types`; `daemon_types` is imported on first use, so that
`initialize` is answered without it. A session's updates are in `updates`.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any, Final, Literal, TypeAlias

import msgspec

from zot.encoding import UNREADABLE
from zot.wire import daemon_greeting
from zot.wire.daemon_greeting import Initialize
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
from zot.wire.spelling import Spelling, read, spelled

PROTOCOL_VERSION: Final = 1
#: Features that a client may enable with `initialize`.
#: Every event, as zot RPC spells it, instead of updates.
EVENTS: Final = "events"
#: Updates repeat a prompt's id. Always on here: the answer lets clients recognise daemons that do not.
PROMPT_IDS: Final = "prompt_ids"
#: Notify the client before the daemon stops, so that it sends its next prompt to the next daemon, and if it resumes.
STOPPING: Final = "stopping"
FEATURES: Final = (EVENTS, PROMPT_IDS, STOPPING)
#: The notifications of the feature `stopping`.
TELLS_STOPPING: Final = "daemon/stopping"
TELLS_RESUMED: Final = "daemon/resumed"

Scope: TypeAlias = Literal["open", "server", "session"]
_MAX_NAME: Final = 100


class Dialect(enum.Enum):
    """What the daemon sends on a connection: updates in one of two spellings, or events as zot RPC spells them."""

    CAMEL = "camelCase"
    SNAKE = "snake_case"
    EVENTS = "events"


def dialect_of(spelling: Spelling, features: Collection[str]) -> Dialect:
    """Return the dialect of a connection with this spelling and these enabled features."""
    return Dialect.EVENTS if EVENTS in features else Dialect(spelling.value)


class Method(msgspec.Struct, frozen=True):
    """A method that clients may call.

    ``takes`` and ``answers`` name the structs of its parameters and result. ``scope`` is ``open`` if it may precede
    `initialize`, ``session`` if it concerns one session. A ``local`` method may be called over the local socket only.
    ``errors`` are its own codes, besides those of every method.
    """

    name: str
    takes: str
    answers: str
    summary: str
    errors: tuple[int, ...] = ()
    scope: Scope = "session"
    local: bool = False

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
    home: ModuleType = daemon_greeting
    if not hasattr(home, name):
        from zot.wire import daemon_types  # Imported lazily: `initialize` needs only the names of other methods.

        home = daemon_types
    found: type[msgspec.Struct] = getattr(home, name)
    return found


def _server(
    name: str, takes: str, answers: str, summary: str, *, errors: tuple[int, ...] = (), local: bool = False
) -> Method:
    return Method(name, takes, answers, summary, errors, "server", local)


#: Error codes of methods that read a session, change it without loading it, load it, or load and change it.
_READS: Final = (SESSION_NOT_FOUND,)
_CHANGES_STORED: Final = (SESSION_NOT_FOUND, NOT_OWNED)
_LOADS: Final = (SESSION_NOT_FOUND, SESSION_LIMIT, NOT_OWNED)
_CHANGES: Final = (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY, NOT_OWNED)

_DECLARED: Final = (
    Method(
        "initialize",
        "Initialize",
        "Initialized",
        "Agrees on the version and the features; the first call of every connection, and allowed again at any time.",
        (VERSION_MISMATCH,),
        "open",
    ),
    Method(
        "session/new",
        "New",
        "Opened",
        "Creates a session of an agent, or resumes the one with this id; its updates follow.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
    ),
    Method(
        "session/prompt",
        "Prompt",
        "Prompted",
        "Runs a turn and answers when it is over; as a notification it runs all the same.",
        _CHANGES,
    ),
    Method(
        "session/steer",
        "Steer",
        "Steered",
        "Says something to the running turn before its next model call; the same as a prompt when none runs.",
        _CHANGES,
    ),
    Method(
        "session/aside",
        "Ask",
        "Answered",
        "Answers a question from the conversation, also during a turn, and keeps it out of that; without tools.",
        _LOADS,
    ),
    Method(
        "session/take_back",
        "TakeBack",
        "TakenBack",
        "Lets a prompt that waits, or what was to steer a turn, never be said; refused if it has been. Ends an aside.",
        _LOADS,
    ),
    Method(
        "session/cancel",
        "OfSession",
        "Cancelled",
        "Ends the running turn, whatever it is doing, and drops what was to steer it; nothing to cancel is an error.",
        (SESSION_NOT_FOUND, SESSION_BUSY),
    ),
    Method(
        "session/approve",
        "Approve",
        "Approved",
        "Answers an `approval_request`; the first answer counts.",
        _CHANGES,
    ),
    Method(
        "session/attach",
        "Attach",
        "Attached",
        "Follows a session, first with everything after a number.",
        (SESSION_NOT_FOUND, SESSION_LIMIT),
    ),
    Method("session/detach", "OfSession", "Detached", "Follows a session no longer.", _READS),
    Method(
        "session/close",
        "OfSession",
        "Closed",
        "Ends what runs in a session and closes it; until `session/new` resumes it, it can be read, attached to and"
        " deleted.",
        (SESSION_NOT_FOUND, SESSION_BUSY, NOT_OWNED),
    ),
    Method(
        "session/kill",
        "OfSession",
        "Killed",
        "Does what `session/close` does, without waiting for what runs.",
        (SESSION_NOT_FOUND, SESSION_BUSY, NOT_OWNED),
    ),
    Method(
        "session/delete",
        "OfSession",
        "Deleted",
        "Deletes a session for good; one that does not exist is deleted already.",
        (SESSION_BUSY, NOT_OWNED),
    ),
    Method(
        "session/list",
        "List",
        "Sessions",
        "Lists the sessions, the latest first; with `query` those in which these words were said.",
    ),
    Method(
        "session/list-acp",
        "List",
        "Sessions",
        "The same as `session/list`, by a name that released clients use.",
    ),
    Method(
        "session/messages",
        "Messages",
        "MessagePage",
        "Returns the conversation, or a page of it; empty for a session that does not exist.",
    ),
    Method("session/state", "OfSession", "State", "Tells how a session is.", _READS),
    Method(
        "session/fork",
        "Fork",
        "Opened",
        "Copies a session, or its first messages, into a new one.",
        _CHANGES,
    ),
    Method(
        "session/configure",
        "Configure",
        "Configured",
        "Changes the model or how much it thinks, from the next model call on; the provider between two turns.",
        _CHANGES,
    ),
    Method(
        "session/compact",
        "OfSession",
        "Compacted",
        "Replaces the older part of the conversation by a summary, for the model.",
        _CHANGES,
    ),
    Method(
        "session/undo_compact",
        "OfSession",
        "CompactUndone",
        "Restores the messages that the newest compaction replaced; those said since follow them.",
        _CHANGES,
    ),
    Method(
        "session/rewind",
        "Rewind",
        "Rewound",
        "Goes back to an earlier point, with the files that tools have changed since, or only says what would change.",
        _CHANGES,
    ),
    Method("session/clear", "OfSession", "Cleared", "Begins the conversation anew.", _CHANGES),
    Method("session/rename", "Rename", "Renamed", "Gives a session a title.", _CHANGES_STORED),
    Method("session/models", "ListModels", "Models", "Lists the models that a session can use.", _READS),
    Method("session/allowed", "OfSession", "AllowedCalls", "Lists what was allowed for good.", _READS),
    Method("session/forget", "Forget", "Forgotten", "Asks again about what was allowed for good.", _CHANGES),
    Method(
        "session/dismiss",
        "Dismiss",
        "Dismissed",
        "Lifts for good what a guard blocks that had connected to the session and is away.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
        local=True,
    ),
    Method(
        "session/lock",
        "Lock",
        "Lock",
        "Keeps the tools inside the directory of a session between two turns, or lets them out, for good.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
        local=True,
    ),
    Method(
        "session/reload",
        "OfSession",
        "Reloaded",
        "Replaces the extensions of a session by what is there now, between two turns: all of them, or none.",
        (SESSION_NOT_FOUND, SESSION_LIMIT, SESSION_BUSY),
        local=True,
    ),
    Method("session/commands", "OfSession", "Commands", "Lists the commands of extensions.", _READS),
    Method(
        "session/run_command",
        "RunCommand",
        "CommandRun",
        "Runs a command of an extension and answers when the extension has.",
        _LOADS,
    ),
    Method("session/panel_key", "PanelKey", "PanelTold", "Sends a key to a panel.", _LOADS),
    Method("session/panel_close", "PanelClose", "PanelTold", "Closes a panel.", _LOADS),
    Method(
        "session/git_branch",
        "OfSession",
        "GitBranch",
        "Tells what is checked out in the directory of a session.",
        _READS,
    ),
    _server("agents/list", "Nothing", "Agents", "Lists the agents that sessions can be created of."),
    _server("agents/status", "Nothing", "Agents", "The same as `agents/list`."),
    _server("status", "Nothing", "Status", "Tells what the daemon is and which sessions are live."),
    _server("health", "Nothing", "Health", "Tells how the daemon is: memory, uptime, what failed."),
    _server("tui/list", "Nothing", "Clients", "Lists the connections."),
    _server("cost/query", "CostQuery", "Costs", "Tells what was spent."),
    _server("logs/subscribe", "Nothing", "Subscribed", "Sends the log from now on, as `logs/event`."),
    _server("config/list", "ConfigList", "ConfigEntries", "Lists settings that a client could show; none."),
    _server("config/sections", "Nothing", "Sections", "Lists forms that a client could show; none."),
    _server("config/templates", "Nothing", "Templates", "Lists templates that a client could show; none."),
    _server(
        "config/reload",
        "Nothing",
        "Reloading",
        "Reads the configuration again, for new sessions and those that rest; others keep theirs until they do.",
        local=True,
    ),
    _server(
        "host/respond",
        "HostRespond",
        "HostAnswered",
        "Answers one request of the host protocol, spelled as that is on every connection.",
        local=True,
    ),
    _server(
        "host/delivered",
        "HostDelivered",
        "Noted",
        "Says that the answer to a request of the host protocol got out.",
        local=True,
    ),
    _server("daemon/stop", "Stop", "Stopping", "Stops the daemon; questions to people are kept.", local=True),
)

METHODS: Final[Mapping[str, Method]] = MappingProxyType({method.name: method for method in _DECLARED})

#: Methods that only read.
LOOKS: Final = frozenset(
    {
        "status",
        "health",
        "agents/list",
        "agents/status",
        "tui/list",
        "cost/query",
        "config/list",
        "config/sections",
        "config/templates",
        "session/list",
        "session/list-acp",
        "session/messages",
        "session/state",
        "session/git_branch",
        "session/commands",
        "session/models",
        "session/allowed",
    }
)


def capabilities(*, local: bool) -> tuple[str, ...]:
    """Return the names of the methods that a connection may call."""
    return tuple(method.name for method in METHODS.values() if local or not method.local)


def find(name: str, *, initialized: bool, local: bool) -> Method:
    """Return the method of this name. Raise RpcError if it is unknown or this connection may not call it yet."""
    method = METHODS.get(name)
    shown = name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"
    if method is None:
        raise RpcError(METHOD_NOT_FOUND, f"Unknown method: {shown}")
    if method.local and not local:
        raise RpcError(METHOD_NOT_FOUND, f"Unknown method: {shown}: it can be called over the local socket only")
    if not initialized and method.scope != "open":
        raise RpcError(NOT_INITIALIZED, "First call must be 'initialize'")
    return method


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
