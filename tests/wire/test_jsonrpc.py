"""JSON-RPC without a connection: requests, answers, and the error for every other line."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zot.wire import jsonrpc
from zot.wire.jsonrpc import Bad, ErrorObject, Reply, RpcError, RpcRequest, decode
from zot.wire.lines import LineSplitter

INVALID, PARSE = jsonrpc.INVALID_REQUEST, jsonrpc.PARSE_ERROR
HOSTILE: list[tuple[bytes, int, bytes]] = [
    (b"{", PARSE, b"null"),
    (b"[1", PARSE, b"null"),
    (b'"text" x', PARSE, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":1} {}', PARSE, b"null"),
    (b"NaN", PARSE, b"null"),
    (b'\xef\xbb\xbf{"jsonrpc":"2.0","method":"x","id":1}', PARSE, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":1,"params":{"a":"\xff"}}', PARSE, b"1"),
    (b'{"jsonrpc":"2.0","method":"x","id":"\xff"}', PARSE, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":"a","params":{"a":"\\ud800"}}', PARSE, b'"a"'),
    (b'{"jsonrpc":"2.0","method":"\\udc00","id":null}', PARSE, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":"\\ud800"}', PARSE, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":1,"params":' + b"[" * 50_000 + b"]" * 50_000 + b"}", PARSE, b"null"),
    (b"[" * 50_000, PARSE, b"null"),
    (b"[]", INVALID, b"null"),
    (b'[{"jsonrpc":"2.0","method":"x","id":1}]', INVALID, b"null"),
    (b"1e400", INVALID, b"null"),
    (b"null", INVALID, b"null"),
    (b"{}", INVALID, b"null"),
    (b'{"method":"x","id":1}', INVALID, b"1"),
    (b'{"jsonrpc":"1.0","method":"x","id":"a"}', INVALID, b'"a"'),
    (b'{"jsonrpc":2.0,"method":"x"}', INVALID, b"null"),
    (b'{"jsonrpc":"2.0","id":1}', INVALID, b"1"),
    (b'{"jsonrpc":"2.0","method":null,"id":1}', INVALID, b"1"),
    (b'{"jsonrpc":"2.0","method":["x"],"id":1}', INVALID, b"1"),
    (b'{"jsonrpc":"2.0","method":"x","id":true}', INVALID, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":[1]}', INVALID, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":1e400}', INVALID, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":' + b"1" * 9999 + b"}", INVALID, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":7,"params":"text"}', INVALID, b"7"),
    (b'{"jsonrpc":"2.0","method":"x","id":7,"params":false}', INVALID, b"7"),
    (b'{"jsonrpc":"2.0","method":"x","id":7,"result":{}}', INVALID, b"null"),
    (b'{"jsonrpc":"2.0","method":"x","id":7,"error":{"code":1,"message":""}}', INVALID, b"null"),
]
DROPPED = [
    b'{"jsonrpc":"2.0","result":1}',
    b'{"jsonrpc":"2.0","id":{},"result":1}',
    b'{"jsonrpc":"1.0","id":1,"result":1}',
    b'{"id":1,"result":1}',
    b'{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}',
    b'{"jsonrpc":"2.0","id":1,"error":"text"}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":"1","message":""}}',
    b'{"jsonrpc":"2.0","id":1,"error":{"code":1}}',
]
IDS = [
    b"1",
    b"-0",
    b"1.50",
    b"1E2",
    b"18446744073709551616",
    b'"zc-out-0"',
    b'"\\u0041/\\/"',
    b'""',
    b'"\xe2\x80\xa8"',
    b"null",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["jsonrpc", "method", "params", "id", "result", "error", "other"])


def request(line: bytes) -> RpcRequest:
    said = decode(line)
    assert isinstance(said, RpcRequest)
    return said


def test_the_first_line_of_the_published_quick_test_is_a_request() -> None:
    line = b'{"jsonrpc":"2.0","method":"initialize","params":{"protocolVersion":1},"id":1}'
    assert decode(line) == RpcRequest("initialize", msgspec.Raw(b'{"protocolVersion":1}'), msgspec.Raw(b"1"))


@pytest.mark.parametrize("frame_id", IDS)
def test_an_id_is_echoed_verbatim(frame_id: bytes) -> None:
    asked = request(b'{"id": %s ,"jsonrpc":"2.0","method":"x"}' % frame_id)
    assert asked.id is not None
    assert jsonrpc.encode_result(asked.id, {}) == b'{"jsonrpc":"2.0","result":{},"id":%s}\n' % frame_id


def test_without_an_id_it_is_a_notification_and_with_null_it_is_a_request() -> None:
    assert decode(b'{"jsonrpc":"2.0","method":"x"}') == RpcRequest("x", msgspec.Raw(b"{}"), None)
    assert decode(b'{"jsonrpc":"2.0","method":"x","id":null}') == RpcRequest(
        "x", msgspec.Raw(b"{}"), msgspec.Raw(b"null")
    )


@pytest.mark.parametrize("given", [b"", b',"params":null', b',"params":{}'])
def test_missing_parameters_are_none(given: bytes) -> None:
    assert request(b'{"jsonrpc":"2.0","method":"x"%s}' % given).params == msgspec.Raw(b"{}")


def test_an_array_of_parameters_is_left_to_the_method() -> None:
    assert request(b'{"jsonrpc":"2.0","method":"x","params":[1]}').params == msgspec.Raw(b"[1]")


def test_of_a_repeated_key_the_last_counts_and_unknown_ones_do_not() -> None:
    line = b'{"jsonrpc":"1","method":"a","id":1,"method":"b","type":"x","type":"y","id":2,"jsonrpc":"\\u0032.0"}'
    assert decode(line) == RpcRequest("b", msgspec.Raw(b"{}"), msgspec.Raw(b"2"))


@pytest.mark.parametrize(("line", "code", "frame_id"), HOSTILE, ids=lambda value: repr(value)[:40])
def test_an_invalid_message_is_answered_with_an_error(line: bytes, code: int, frame_id: bytes) -> None:
    said = decode(line)
    assert isinstance(said, Bad)
    assert (said.code, said.id) == (code, msgspec.Raw(frame_id))
    assert said.message.startswith("Parse error: " if code == PARSE else "Invalid request: ")
    answer = json.loads(jsonrpc.encode_error(said.id, said))
    assert answer == {"jsonrpc": "2.0", "error": {"code": code, "message": said.message}, "id": json.loads(frame_id)}


def test_an_answer_has_a_result_or_an_error() -> None:
    one = msgspec.Raw(b"1")
    assert decode(b'{"jsonrpc":"2.0","result":null,"id":1}') == Reply(one, msgspec.Raw(b"null"))
    failure = b'{"jsonrpc":"2.0","error":{"code":-5,"message":"no","data":[1],"more":2},"id":1}'
    assert decode(failure) == Reply(one, error=ErrorObject(-5, "no", [1]))
    assert decode(b'{"jsonrpc":"2.0","id":1,"error":{"code":-5,"message":"no"}}') == Reply(
        one, error=ErrorObject(-5, "no")
    )


@pytest.mark.parametrize("line", DROPPED)
def test_an_invalid_answer_is_dropped(line: bytes) -> None:
    assert decode(line) is None


def test_lines_have_their_keys_in_the_usual_order() -> None:
    frame_id = msgspec.Raw(b"1")
    assert jsonrpc.encode_result(frame_id, {"a": 1}) == b'{"jsonrpc":"2.0","result":{"a":1},"id":1}\n'
    assert jsonrpc.encode_error(frame_id, RpcError(-5, "no", {"a": 1})) == (
        b'{"jsonrpc":"2.0","error":{"code":-5,"message":"no","data":{"a":1}},"id":1}\n'
    )
    assert jsonrpc.encode_error(jsonrpc.NULL, RpcError(-5, "no")) == (
        b'{"jsonrpc":"2.0","error":{"code":-5,"message":"no"},"id":null}\n'
    )
    assert jsonrpc.encode_notification("m", {"a": 1}) == b'{"jsonrpc":"2.0","method":"m","params":{"a":1}}\n'
    assert jsonrpc.encode_request("m", {}, 3) == b'{"jsonrpc":"2.0","method":"m","params":{},"id":3}\n'
    assert jsonrpc.encode_request("m", {}, "a") == b'{"jsonrpc":"2.0","method":"m","params":{},"id":"a"}\n'


def test_every_written_line_is_json_for_the_strictest_reader() -> None:
    line = jsonrpc.encode_result(jsonrpc.NULL, {"a": "\ud800", "b": float("nan"), "c": float("inf")})
    assert line == '{"jsonrpc":"2.0","result":{"a":"\ufffd","b":null,"c":null},"id":null}\n'.encode()


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_line_raises(line: bytes) -> None:
    assert isinstance(decode(line), RpcRequest | Reply | Bad | None)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(keys, json_values))
def test_every_object_is_read_or_answered(fields: dict[str, Any]) -> None:
    for line in (json.dumps(fields).encode(), json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")):
        said = decode(line)
        if isinstance(said, Bad):
            assert json.loads(jsonrpc.encode_error(said.id, said))["id"] in (None, fields.get("id"))


@settings(max_examples=40, deadline=None)
@given(st.text(), json_values, st.integers(-(2**63), 2**63) | st.text())
def test_a_client_s_lines_are_read_as_written(method: str, params: Any, frame_id: int | str) -> None:
    params = {"value": params}
    line = jsonrpc.encode_request(method, params, frame_id)
    [whole] = LineSplitter().feed(line)
    splitter = LineSplitter()
    assert [found for byte in line for found in splitter.feed(bytes([byte]))] == [whole]
    assert isinstance(whole, bytes)
    said = request(whole)
    assert said.id is not None
    assert (said.method, json.loads(bytes(said.id))) == (method, frame_id)
    assert json.loads(bytes(said.params)) == params
