"""Permissions of an extension: those of its manifest, and those that zot itself enforces."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from zot.errors import ConfigError
from zot.extensions.manifest import FIELD_RULES, SCOPE_RULES, parse
from zot.extensions.peer import (
    CommandAnswered,
    CommandRegistered,
    InterceptDecision,
    Notified,
    PeerEvent,
    ProtocolViolation,
    SubscribeReceived,
    ToolRegistered,
)
from zot.extensions.permissions import Permissions
from zot.wire import extension as wire

from .test_peer import GREET, HELLO, LOOKUP, OBJECT, Talk

EVERYTHING = {"tools": True, "events": True, "intercept": True, "ui": True}


def manifest(permissions: object) -> bytes:
    return json.dumps({"name": "x", "exec": "./x", "permissions": permissions}).encode()


def test_a_manifest_says_what_an_extension_may_do() -> None:
    declared = {
        "fs.read": ["~/notes", "$CWD", "/srv/data"], "fs.write": ["data", "$CWD/out"], "net": True, "exec": ["git"],
        "env": ["LANG", "WEATHER_KEY"], "tools": ["lookup"], "events": ["turn_end"], "intercept": ["tool_call"],
        "ui": True,
    }  # fmt: skip
    assert parse(manifest(declared), "f").permissions == Permissions(
        ("~/notes", "$CWD", "/srv/data"), ("data", "$CWD/out"), True, ("git",), ("LANG", "WEATHER_KEY"), ("lookup",),
        ("turn_end",), ("tool_call",), True,
    )  # fmt: skip
    assert parse(manifest({}), "f").permissions == Permissions()
    assert parse(b'{"name": "x", "exec": "./x"}', "f").permissions is None


@pytest.mark.parametrize(
    ("permissions", "problem"),
    [
        (None, f"`permissions` must be {FIELD_RULES['permissions']}; but it is null"),
        ([], f"`permissions` must be {FIELD_RULES['permissions']}; but it is []"),
        ({"fs.exec": True}, f'`permissions` has "fs.exec", which is not a scope; use one of: {", ".join(SCOPE_RULES)}'),
        ({"net": "yes"}, 'permissions: `net` must be true or false; but it is "yes"'),
        ({"fs.read": True}, f"permissions: `fs.read` must be {SCOPE_RULES['fs.read']}; but it is true"),
        ({"fs.read": [""]}, "permissions: fs.read: '' is not a path"),
        ({"fs.write": ["//"]}, "permissions: fs.write: '//' is everything; name what is needed"),
        (
            {"fs.write": ["./"]},
            "permissions: fs.write: './' is its own directory, of which only its data can be written",
        ),
        ({"fs.read": ["$HOME/x"]}, "permissions: fs.read: '$HOME/x' begins with a variable; there is only $CWD"),
        (
            {"fs.read": ["~root/x"]},
            "permissions: fs.read: '~root/x' is in another user's home; give its full path",
        ),
        ({"exec": ["bin/x"]}, "permissions: exec: 'bin/x' is neither the name of a program nor an absolute path"),
        ({"env": ["A=B"]}, "permissions: env: 'A=B' is not the name of a variable"),
        ({"events": ["lunch"]}, f'permissions: `events` must be {SCOPE_RULES["events"]}; but it is ["lunch"]'),
        ({"tools": ["a b"]}, f'permissions: `tools` must be {SCOPE_RULES["tools"]}; but it is ["a b"]'),
    ],
)
def test_a_wrong_scope_is_named_with_its_file_and_field(permissions: object, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(manifest(permissions), "there/extension.json")
    assert str(refused.value) == f"there/extension.json: {problem}"


# The limits that zot enforces: registrations, events, decisions and panels.


def talk(permissions: dict[str, Any] | None, *frames: dict[str, Any], **options: Any) -> list[PeerEvent]:
    """Return the peer's events for ``frames`` after hello."""
    return begun(permissions, **options).says(*frames)


def begun(permissions: dict[str, Any] | None, **options: Any) -> Talk:
    granted = None if permissions is None else msgspec.convert(permissions, Permissions)
    return Talk(HELLO, permissions=granted, **options)


def test_a_tool_needs_the_scope() -> None:
    registered = ToolRegistered(wire.RegisterTool("lookup", "", OBJECT))
    refused = ProtocolViolation("register_tool: its permissions do not include the tool lookup", notice=True)
    assert talk(None, LOOKUP) == talk(EVERYTHING, LOOKUP) == talk({"tools": ["lookup"]}, LOOKUP) == [registered]
    assert talk({}, LOOKUP) == talk({"tools": ["other"]}, LOOKUP) == talk({"tools": []}, LOOKUP) == [refused]


def test_a_command_needs_none() -> None:
    assert talk({}, GREET) == [CommandRegistered(wire.RegisterCommand("greet", "say hi"))]


def test_a_subscription_is_reduced_to_the_granted_scopes() -> None:
    wanted = {"type": "subscribe", "events": ["turn_start", "turn_end"], "intercept": ["tool_call", "turn_start"]}
    everything = SubscribeReceived(frozenset({"turn_start", "turn_end"}), frozenset({"tool_call", "turn_start"}))
    assert talk(None, wanted) == talk(EVERYTHING, wanted) == [everything]
    assert talk({"events": ["turn_end"], "intercept": ["tool_call"]}, wanted) == [
        ProtocolViolation(
            "subscribe: its permissions do not include events (turn_start) and intercept (turn_start)", notice=True
        ),
        SubscribeReceived(frozenset({"turn_end"}), frozenset({"tool_call"})),
    ]


def test_an_event_it_may_not_decide_cannot_be_blocked_by_its_failure() -> None:
    some = begun({"events": True})
    some.says({"type": "subscribe", "intercept": ["tool_call"], "on_failure": "block"})
    some.peer.end("exited with 1", some.now)
    assert some.peer.ask("tool_call", some.now) == InterceptDecision()


def test_a_guard_whose_scope_is_missing_stays_closed() -> None:
    guard = begun({}, closed=frozenset({"tool_call"}), fails_closed=True)
    assert guard.says({"type": "subscribe", "intercept": ["tool_call"]}) == [
        ProtocolViolation("subscribe: its permissions do not include intercept (tool_call)", notice=True),
        SubscribeReceived(frozenset(), frozenset()),
        ProtocolViolation("did not subscribe to tool_call, as promised: it stays blocked", notice=True),
    ]
    decision = guard.peer.ask("tool_call", guard.now)
    assert isinstance(decision, InterceptDecision)
    assert decision.block


def test_notices_and_panels_need_the_scope() -> None:
    notice = {"type": "notify", "message": "hi"}
    assert talk({"ui": True}, notice) == [Notified("info", "hi")]
    assert talk({}, notice) == [ProtocolViolation("notify: its permissions do not include ui", notice=True)]
    some = begun({})
    some.says(GREET)
    asked = some.peer.invoke_command("greet", "", some.now)
    problem = "its permissions do not include ui, so it cannot open a panel"
    opening = {"type": "command_response", "id": asked.id, "action": "open_panel", "open_panel": {"id": "p"}}
    assert some.says(opening) == [
        ProtocolViolation(f"command_response: {problem}", notice=True),
        CommandAnswered(asked.id, wire.CommandResponse(asked.id, error=problem)),
    ]
    assert some.peer.panels == ()
