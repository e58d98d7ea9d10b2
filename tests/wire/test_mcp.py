"""The state of a connection to an MCP server, after each message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zot.errors import ProtocolError
from zot.wire.mcp import (
    MAX_OPEN,
    MAX_UNASKED,
    CallAnswered,
    CallProgress,
    ClientBroken,
    ClientEvent,
    ClientState,
    ListChanged,
    LogNote,
    McpClient,
    ServerReady,
    ToSend,
    decode_line,
)
from zot.wire.mcp_server import STATELESS, WITH_HANDSHAKE


def receive(client: McpClient, **message: Any) -> list[ClientEvent]:
    return client.receive(decode_line(json.dumps({"jsonrpc": "2.0", **message}).encode()))


def ready(revision: str = STATELESS) -> McpClient:
    client = McpClient("file:///here", revision=revision if revision != STATELESS else "")
    first = json.loads(client.start().data)
    result = {"supportedVersions": [STATELESS]} if revision == STATELESS else {"protocolVersion": revision}
    events = receive(client, id=first["id"], result=result)
    assert events[-1] == ServerReady(revision)
    return client


def test_a_newer_server_is_discovered() -> None:
    assert ready().state is ClientState.READY


@pytest.mark.parametrize("answer", [{"error": {"code": -32601, "message": "?"}}, {"result": {"supportedVersions": []}},
                                    {"result": 7}])  # fmt: skip
def test_an_older_server_is_initialized(answer: dict[str, Any]) -> None:
    client = McpClient("file:///here")
    first = json.loads(client.start().data)
    assert first["method"] == "server/discover"
    sent = receive(client, id=first["id"], **answer)[-1]
    assert isinstance(sent, ToSend)
    assert json.loads(sent.message.data)["method"] == "initialize"
    events = receive(client, id=json.loads(sent.message.data)["id"], result={"protocolVersion": "2025-06-18"})
    assert events[-1] == ServerReady("2025-06-18")


def test_a_late_description_counts_while_the_handshake_is_unanswered() -> None:
    client = McpClient("file:///here")
    first = json.loads(client.start().data)
    handshake = client.undiscovered()
    assert handshake is not None
    assert json.loads(handshake.data)["method"] == "initialize"
    assert receive(client, id=first["id"], result={"supportedVersions": [STATELESS]}) == [ServerReady(STATELESS)]
    assert client.undiscovered() is None


@pytest.mark.parametrize("version", ["1999-01-01", STATELESS, ""])
def test_a_revision_that_is_not_known_breaks_the_connection(version: str) -> None:
    client = McpClient("file:///here", revision=WITH_HANDSHAKE)
    first = json.loads(client.start().data)
    [event] = receive(client, id=first["id"], result={"protocolVersion": version})
    assert isinstance(event, ClientBroken)
    with pytest.raises(ProtocolError, match="broken"):
        client.request("tools/list", {})


def test_only_newer_requests_carry_version_and_capabilities() -> None:
    _, new = ready().request("tools/list", {})
    _, old = ready(WITH_HANDSHAKE).request("tools/list", {})
    assert json.loads(new.data)["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] == STATELESS
    assert [*json.loads(old.data)["params"]["_meta"]] == ["progressToken"]


def test_an_answer_reaches_its_request_once() -> None:
    client = ready()
    number, _ = client.request("tools/call", {})
    assert isinstance(receive(client, id=number, result={})[0], CallAnswered)
    assert isinstance(receive(client, id=number, result={})[0], LogNote)


def test_an_error_is_one_short_printable_line() -> None:
    client = ready()
    number, _ = client.request("tools/call", {})
    [event] = receive(client, id=number, error={"code": 1, "message": "a\x1b\n" + "x" * 1000})
    assert isinstance(event, CallAnswered)
    assert event.problem.isprintable()
    assert len(event.problem) < 310


def test_a_cancelled_request_is_no_longer_open() -> None:
    client = ready()
    number, _ = client.request("tools/call", {})
    cancelled = client.cancel(number, "why")
    assert cancelled is not None
    assert json.loads(cancelled[1].data)["params"]["requestId"] == cancelled[0] == number
    assert client.cancel(number, "why") is None
    assert receive(client, id=number, result={}) == []  # It may have been on the way.
    assert isinstance(receive(client, id=number, result={})[0], LogNote)


def test_progress_counts_for_open_requests_only() -> None:
    client = ready()
    number, _ = client.request("tools/call", {})
    about = {"method": "notifications/progress"}
    assert receive(client, **about, params={"progressToken": number, "message": "x"}) == [CallProgress(number, "x")]
    counted = {"progressToken": number, "progress": 2, "total": 4}
    assert receive(client, **about, params=counted) == [CallProgress(number, "2 of 4")]
    assert receive(client, **about, params={"progressToken": 99}) == []
    assert isinstance(receive(client, **about, params={})[0], LogNote)
    assert receive(client, method="notifications/tools/list_changed") == [ListChanged("tools")]


def test_messages_that_answer_nothing_are_counted() -> None:
    client = ready()
    for _ in range(MAX_UNASKED):
        assert not isinstance(receive(client, method="notifications/message")[-1:], ClientBroken)
    assert isinstance(receive(client, method="notifications/message")[0], ClientBroken)


def test_open_requests_are_limited() -> None:
    client = ready()
    for _ in range(MAX_OPEN):
        client.request("tools/call", {})
    with pytest.raises(ProtocolError, match="requests are open"):
        client.request("tools/call", {})
    assert len(client.fail_all("over")) == MAX_OPEN


@given(st.lists(st.one_of(st.binary(max_size=60), st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "result", "error", "params"]), inner),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())), max_size=8))  # fmt: skip
def test_no_bytes_of_a_server_raise(lines: list[bytes]) -> None:
    client = ready()
    client.request("tools/call", {})
    for line in lines:
        client.receive(decode_line(line))
