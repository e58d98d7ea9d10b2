"""The daemon's methods, without a connection: their parameters in either spelling, and their answers in each."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zot.messages import Counters, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock
from zot.wire import daemon, host, jsonrpc
from zot.wire import daemon_types as messages
from zot.wire import daemon_types as server
from zot.wire import daemon_types as session
from zot.wire.daemon import METHODS, OPERATOR, Grant, encode_error_in, encode_result_in, find, read_params, spelling_of
from zot.wire.jsonrpc import RpcError
from zot.wire.spelling import Spelling

ONE = msgspec.Raw(b"1")
#: Deeper than any Python reads: 1,000 levels in 3.11, 10,000 in 3.13.
DEEP = b"[" * 100_000 + b"]" * 100_000
SEED = ["initialize", "session/new", "session/close", "session/prompt", "session/cancel", "status"]
#: Without these, clients that were released do not start, or cannot talk.
NEEDED = [
    "config/sections", "config/templates", "logs/subscribe", "agents/status", "session/approve", "session/messages",
    "tui/list", "cost/query", "session/list-acp", "config/list", "health", "session/git_branch",
]  # fmt: skip
LOCAL = {
    "session/dismiss", "session/lock", "session/reload", "host/respond", "host/delivered", "daemon/stop",
    "config/reload",
}  # fmt: skip


def read(name: str, params: Any) -> Any:
    return read_params(METHODS[name], msgspec.Raw(params if isinstance(params, bytes) else json.dumps(params).encode()))


def refused(name: str, params: Any) -> str:
    with pytest.raises(RpcError) as caught:
        read(name, params)
    assert caught.value.code == jsonrpc.INVALID_PARAMS
    return caught.value.message


def snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def test_published_methods_and_those_of_clients_exist() -> None:
    assert {*SEED, *NEEDED} <= METHODS.keys()


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_method_is_declared_in_full(method: daemon.Method) -> None:
    assert METHODS[method.name] is method
    assert method.summary.endswith(".")
    assert ("session_id" in method.params.__struct_fields__) >= (
        method.scope == "session" and "list" not in method.name
    )
    assert (method.scope == "session") == method.name.startswith("session/")
    msgspec.json.schema(method.params)
    msgspec.json.schema(method.result)


def test_before_initialize_no_other_method_can_be_called() -> None:
    assert find("initialize", initialized=False, grant=Grant("t")) is METHODS["initialize"]
    for name, code in [("status", jsonrpc.NOT_INITIALIZED), ("foo/bar", jsonrpc.METHOD_NOT_FOUND)]:
        with pytest.raises(RpcError) as caught:
            find(name, initialized=False, grant=OPERATOR)
        assert caught.value.code == code
    assert find("status", initialized=True, grant=Grant("t")) is METHODS["status"]


def test_an_unknown_method_is_named_up_to_a_length() -> None:
    with pytest.raises(RpcError, match=r"^Unknown method: session/promt; did you mean session/prompt\?$"):
        find("session/promt", initialized=True, grant=OPERATOR)
    with pytest.raises(RpcError, match=r"^Unknown method: foo/bar$"):
        find("foo/bar", initialized=True, grant=OPERATOR)
    with pytest.raises(RpcError) as caught:
        find("x" * 10_000, initialized=True, grant=OPERATOR)
    assert len(caught.value.message) < 200


def test_local_methods_are_neither_offered_nor_found_remotely() -> None:
    assert daemon.capabilities(OPERATOR) == (*METHODS,)
    assert {*METHODS} - {*daemon.capabilities(Grant("t"))} == LOCAL
    with pytest.raises(RpcError) as caught:
        find("daemon/stop", initialized=True, grant=Grant("t"))
    assert caught.value.code == jsonrpc.METHOD_NOT_FOUND
    assert find("daemon/stop", initialized=True, grant=OPERATOR).local


@pytest.mark.parametrize(
    ("params", "spelling"),
    [
        ({}, Spelling.CAMEL),
        ({"protocolVersion": 1}, Spelling.CAMEL),
        ({"protocol_version": 1, "clientCapabilities": {"elicitation": {"form": {}}}}, Spelling.SNAKE),
        ({"protocol_version": None}, Spelling.SNAKE),
    ],
    ids=repr,
)
def test_initialize_reports_the_spelling_of_a_connection(params: dict[str, Any], spelling: Spelling) -> None:
    asked = read("initialize", params)
    assert asked.protocol_version == 1
    daemon.check_version(asked)
    assert spelling_of(msgspec.Raw(json.dumps(params).encode())) is spelling


@pytest.mark.parametrize("name", ["protocolVersion", "protocol_version"])
def test_another_version_is_refused_with_both(name: str) -> None:
    with pytest.raises(RpcError) as caught:
        daemon.check_version(read("initialize", {name: 2}))
    assert (caught.value.code, caught.value.data) == (jsonrpc.VERSION_MISMATCH, {"server": 1, "client": 2})
    assert caught.value.message == "Protocol version mismatch: server=1, client=2"


def test_the_environment_of_a_client_is_never_decoded() -> None:
    asked = read("initialize", {"env": {"API_KEY": "secret"}, "tui_id": "tui_1", "tuiSig": 5})
    assert asked == daemon.Initialize()
    assert "secret" not in repr(asked)


def test_parameters_are_accepted_in_either_spelling_at_every_level() -> None:
    camel = {"sessionId": "s", "prompt": "hi", "attachments": [{"dataB64": "aGk=", "mimeType": "text/plain"}]}
    mixed = {"session_id": "s", "prompt": "hi", "attachments": [{"data_b64": "aGk=", "mimeType": "text/plain"}]}
    expected = session.Prompt("s", "hi", (session.Attachment(data_b64=b"hi", mime_type="text/plain"),))
    assert read("session/prompt", camel) == read("session/prompt", mixed) == expected
    configured = session.Configure("s", session.Overrides(model="m", model_provider="p"))
    assert (
        read("session/configure", {"sessionId": "s", "overrides": {"model": "m", "model_provider": "p"}}) == configured
    )


def test_two_spellings_of_one_name_must_agree() -> None:
    assert read("session/cancel", {"sessionId": "s", "session_id": "s"}) == session.OfSession("s")
    assert read("session/cancel", {"sessionId": "s", "session_id": None}) == session.OfSession("s")
    assert refused("session/cancel", {"sessionId": "s", "session_id": "t"}) == "sessionId and session_id differ"
    inside = {"sessionId": "s", "attachments": [{"path": "x"}, {"mimeType": "a", "mime_type": "b"}]}
    assert refused("session/prompt", inside) == "attachments[1].mimeType and attachments[1].mime_type differ"


def test_null_is_absent_and_unknown_keys_are_ignored() -> None:
    released = {
        "agent_alias": "main", "cwd": None, "session_id": None, "tui_id": "tui_1", "exclude_memory": True,
        "chat_mode": "acp", "keep_siblings": False,
    }  # fmt: skip
    assert read("session/new", released) == session.New("main")
    assert read("status", {"any": ["thing"]}) == server.Nothing()


@pytest.mark.parametrize(
    ("name", "params", "reason"),
    [
        ("session/new", {}, "agentAlias is required"),
        ("session/new", {"agentAlias": None}, "agentAlias is required"),
        ("session/approve", {"session_id": "s", "request_id": "r"}, "decision is required"),
        ("session/new", [], "params must be an object"),
        ("session/new", {"agentAlias": 1}, "params: agentAlias must be a string, not a whole number"),
        ("initialize", {"protocolVersion": "1"}, "params: protocolVersion must be a whole number, not a string"),
        ("session/attach", {"sessionId": "s", "after": -1}, "params: after must be a whole number of at least 0"),
        ("session/prompt", {"sessionId": "s", "attachments": {}}, "params: attachments must be a list, not an object"),
        ("session/prompt", {"sessionId": "s", "attachments": [1]}, "params: attachments[0] must be an object, not"),
        ("session/prompt", {"sessionId": "s", "attachments": [{"dataB64": "%"}]}, "params: attachments[0].dataB64: "),
        (
            "session/approve",
            {"sessionId": "s", "requestId": "r", "decision": "x" * 9999},
            "decision must be one of allow_once, allow_always, reject, reject_once",
        ),
        ("session/approve", {"sessionId": "s", "requestId": "r", "decision": 1}, "params: decision must be a string"),
        ("session/messages", {"sessionId": "s", "view": "none"}, "view must be one of shown, full, past"),
        ("session/prompt", b'{"attachments":%s}' % (b"[" * 900 + b"]" * 900), "sessionId is required"),
        ("session/configure", b'{"sessionId":"","overrides":%s}' % DEEP, "params are nested too"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_named(name: str, params: Any, reason: str) -> None:
    message = refused(name, params)
    assert message.startswith(reason)
    assert len(message) <= 500


def test_a_decision_has_one_internal_name() -> None:
    for said, meant in [("reject_once", "reject"), ("reject", "reject"), ("allow_always", "allow_always")]:
        assert read("session/approve", {"sessionId": "s", "requestId": "r", "decision": said}).verdict == meant


def test_a_request_of_the_host_protocol_is_valid_here_too() -> None:
    asked = read("host/respond", {"request_id": "r", "session_id": "s", "prompt": "hi", "ageMs": 12.5})
    assert isinstance(asked, server.HostRespond)
    host.check(asked)
    assert (asked.ids, asked.age_ms) == (host.Ids("r", "s"), 12.5)
    with pytest.raises(host.Refused, match="prompt is missing"):
        host.check(read("host/respond", {"request_id": "r", "session_id": "s"}))
    answered = server.HostAnswered(asked.ids.success("Hello"))
    answer = encode_result_in(Spelling.CAMEL, ONE, answered)
    assert answer == encode_result_in(Spelling.SNAKE, ONE, answered)
    assert json.loads(answer)["result"]["response"]["request_id"] == "r"


def test_an_answer_is_spelled_as_the_connection_is() -> None:
    result = daemon.Initialized(protocol_version=1, server_version="0.8.1", server_pid=7, capabilities=("status",))
    assert encode_result_in(Spelling.CAMEL, ONE, result) == (
        b'{"jsonrpc":"2.0","result":{"protocolVersion":1,"serverVersion":"0.8.1","serverPid":7,'
        b'"capabilities":["status"],"features":[]},"id":1}\n'
    )
    assert encode_result_in(Spelling.SNAKE, ONE, result) == (
        b'{"jsonrpc":"2.0","result":{"protocol_version":1,"server_version":"0.8.1","server_pid":7,'
        b'"capabilities":["status"],"features":[]},"id":1}\n'
    )


def test_the_answers_of_released_clients_are_fixed() -> None:
    def result(answer: msgspec.Struct) -> Any:
        return json.loads(encode_result_in(Spelling.SNAKE, msgspec.Raw(b'"zc-out-2"'), answer))["result"]

    assert result(server.Agents((server.AgentEntry(alias="main"),))) == {
        "agents": [
            {"alias": "main", "enabled": True, "channels": [], "provider": "", "model": "", "live_sessions": 0,
             "persisted_sessions": 0}
        ]
    }  # fmt: skip
    assert result(server.Sections()) == {"sections": []}
    assert result(server.Templates()) == {"templates": []}
    assert result(server.Subscribed()) == {"subscribed": True}
    health = server.Health(
        pid=1, updated_at="t", uptime_seconds=3, components={"daemon": server.Component(status="ok", updated_at="t")},
        process=server.Process(rss_bytes=5, system_ram_total_bytes=6, num_cpus=2),
    )  # fmt: skip
    assert result(health) == {
        "pid": 1,
        "updated_at": "t",
        "uptime_seconds": 3,
        "components": {
            "daemon": {"status": "ok", "updated_at": "t", "last_ok": None, "last_error": None, "restart_count": 0}
        },
        "process": {"rss_bytes": 5, "system_ram_total_bytes": 6, "num_cpus": 2, "cpu_percent": None},
    }


def test_only_zot_s_keys_are_spelled_in_two_ways() -> None:
    call = ShownCall("c1", "bash", {"someKey": {"other_key": 1}})
    message = messages.MessageEntry.of(ShownMessage("assistant", (TextBlock("Hi"), call), "t"))
    page = messages.MessagePage("s", (message,), 1, 0)
    camel, snaked = (encode_result_in(spelling, ONE, page) for spelling in Spelling)
    assert camel.replace(b'"sessionId"', b'"session_id"') == snaked
    assert b'{"someKey":{"other_key":1}}' in snaked


def test_a_message_is_shown_by_its_text_even_a_tool_result() -> None:
    output = ShownResult("c1", False, (TextBlock("a.txt"), ShownImage("image/png", 3)))
    assert messages.MessageEntry.of(ShownMessage("tool", (output,), "t")).content == "a.txt"
    assert messages.MessageEntry.of(ShownMessage("user", (TextBlock("hi"),), "t")).content == "hi"


def test_the_data_of_an_error_is_spelled_as_the_connection_is() -> None:
    data = session.FailedTurn("Hel", session.Used.of(Counters(1, 2, 3, 4, 0.5, price_known=False)))
    error = RpcError(jsonrpc.INTERNAL_ERROR, "no", data)
    assert json.loads(encode_error_in(Spelling.SNAKE, ONE, error))["error"]["data"] == {
        "content": "Hel",
        "usage": {"input": 1, "output": 2, "cache_read": 3, "cache_write": 4, "cost_usd": None, "reasoning": 0},
        "stop_reason": "error",
    }
    assert b'"costUsd":null,"reasoning":0},"stopReason":"error"}' in encode_error_in(Spelling.CAMEL, ONE, error)
    assert b'"data"' not in encode_error_in(Spelling.SNAKE, ONE, RpcError(-5, "no"))


def test_the_time_of_a_log_line_is_named_as_log_tools_want_it() -> None:
    service, event = server.LogService("zot", "1"), server.LogHappening("rpc", "start")
    line = server.LogEvent(
        id="1", timestamp="t", severity_number=9, severity_text="INFO", event=event, service=service, message="m"
    )
    assert json.loads(jsonrpc.encode_notification("logs/event", line))["params"] == {
        "id": "1", "@timestamp": "t", "severity_number": 9, "severity_text": "INFO",
        "event": {"category": "rpc", "action": "start"}, "service": {"name": "zot", "version": "1"}, "message": "m",
        "schema_version": 2,
    }  # fmt: skip


names = st.sampled_from(
    sorted(
        {spelled for method in METHODS.values() for field in msgspec.structs.fields(method.params)
         for spelled in (field.name, field.encode_name)}
    )
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(METHODS)), st.dictionaries(names, values, max_size=4))
def test_parameters_are_read_or_refused_and_their_spelling_does_not_matter(name: str, given: dict[str, Any]) -> None:
    def outcome(params: dict[str, Any]) -> Any:
        try:
            return read(name, params)
        except RpcError as problem:
            return problem.code

    result = outcome(given)
    assert result == jsonrpc.INVALID_PARAMS or type(result) is METHODS[name].params
    single = {key: value for key, value in given.items() if snake(key) == key or snake(key) not in given}
    if single == given and name != "host/respond":
        assert outcome({snake(key): value for key, value in given.items()}) == result
