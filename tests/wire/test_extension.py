"""The extension protocol as bytes: every frame of the first documents, every wrong one, and limits."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zot.errors import ProtocolError
from zot.wire import extension as wire
from zot.wire.lines import LineSplitter

#: Each frame that the seed document shows, as it stands there, and what it means.
FROM_EXTENSION: dict[str, wire.AnyFromExtension] = {
    '{"type":"hello","name":"weather","version":"1.0.0","capabilities":["commands","tools","panels"]}': wire.Hello(
        "weather", "1.0.0", ("commands", "tools", "panels")
    ),
    '{"type":"register_command","name":"weather","description":"current weather for a city"}': wire.RegisterCommand(
        "weather", "current weather for a city"
    ),
    '{"type":"register_tool","name":"weather","description":"Get it.","schema":{"type":"object"}}': wire.RegisterTool(
        "weather", "Get it.", {"type": "object"}
    ),
    '{"type":"ready"}': wire.Ready(),
    '{"type":"tool_result","id":"7","content":[{"type":"text","text":"16°C, fog"}]}': wire.ToolResult(
        "7", (wire.ContentBlock("text", "16°C, fog"),)
    ),
    '{"type":"tool_result","id":"7","content":[{"type":"image","mime_type":"image/png","data":"aGk="}],'
    '"is_error":true}': (
        wire.ToolResult("7", (wire.ContentBlock("image", mime_type="image/png", data="aGk="),), is_error=True)
    ),
    '{"type":"subscribe","events":["session_start"],"intercept":["tool_call"],"on_failure":"block"}': wire.Subscribe(
        ("session_start",), ("tool_call",), "block"
    ),
    '{"type":"event_intercept_response","id":"1","block":true,"reason":"refused"}': wire.EventInterceptResponse(
        "1", block=True, reason="refused"
    ),
    '{"type":"event_intercept_response","id":"1","modified_args":{"command":"echo"}}': wire.EventInterceptResponse(
        "1", modified_args={"command": "echo"}
    ),
    '{"type":"event_intercept_response","id":"1","replace_text":"[redacted]"}': wire.EventInterceptResponse(
        "1", replace_text="[redacted]"
    ),
    '{"type":"command_response","id":"1","action":"prompt","prompt":"Show it."}': wire.CommandResponse(
        "1", "prompt", prompt="Show it."
    ),
    '{"type":"command_response","id":"1","action":"open_panel",'
    '"open_panel":{"id":"p","title":"T","lines":["□ a"],"footer":"f"}}': (
        wire.CommandResponse("1", "open_panel", open_panel=wire.Panel("p", "T", ("□ a",), "f"))
    ),
    '{"type":"panel_render","panel_id":"p","title":"T","lines":["✓ a"],"footer":"f"}': wire.PanelRender(
        "p", "T", ("✓ a",), "f"
    ),
    '{"type":"panel_close","panel_id":"p"}': wire.PanelClose("p"),
    '{"type":"notify","level":"warn","message":"12 entries"}': wire.Notify("12 entries", "warn"),
    '{"type":"shutdown_ack"}': wire.ShutdownAck(),
}  # fmt: skip
TO_EXTENSION: dict[str, wire.AnyToExtension] = {
    '{"type":"hello_ack","protocol_version":1,"zot_version":"0.0.7","provider":"anthropic","model":"m","cwd":"/c",'
    '"extension_dir":"/e","data_dir":"/e"}': wire.HelloAck(1, "0.0.7", "anthropic", "m", "/c", "/e", "/e"),
    '{"type":"command_invoked","id":"1","name":"weather","args":"berlin"}': wire.CommandInvoked(
        "1", "weather", "berlin"
    ),
    '{"type":"command_invoked","id":"1","name":"weather","args":""}': wire.CommandInvoked("1", "weather"),
    '{"type":"tool_call","id":"1","name":"weather","args":{"city":"Berlin"}}': wire.ToolCall(
        "1", "weather", {"city": "Berlin"}
    ),
    '{"type":"event","event":"session_start"}': wire.Event("session_start"),
    '{"type":"event","event":"turn_start","step":1}': wire.Event("turn_start", step=1),
    '{"type":"event","event":"tool_call","tool_id":"t","tool_name":"read","tool_args":{"path":"foo.go"}}': wire.Event(
        "tool_call", tool_id="t", tool_name="read", tool_args={"path": "foo.go"}
    ),
    '{"type":"event","event":"turn_end","stop":"end_turn"}': wire.Event("turn_end", stop="end_turn"),
    '{"type":"event","event":"turn_end","stop":"error","error":"closed"}': wire.Event(
        "turn_end", stop="error", error="closed"
    ),
    '{"type":"event_intercept","id":"1","event":"tool_call","tool_id":"t","tool_name":"bash",'
    '"tool_args":{"command":"rm"}}': (
        wire.EventIntercept("1", "tool_call", tool_id="t", tool_name="bash", tool_args={"command": "rm"})
    ),
    '{"type":"event_intercept","id":"1","event":"turn_start","step":3}': wire.EventIntercept("1", "turn_start", step=3),
    '{"type":"event_intercept","id":"1","event":"assistant_message","text":"key"}': wire.EventIntercept(
        "1", "assistant_message", text="key"
    ),
    '{"type":"panel_key","panel_id":"p","key":"rune","text":"x"}': wire.PanelKey("p", "rune", "x"),
    '{"type":"panel_close","panel_id":"p"}': wire.PanelClose("p"),
    '{"type":"shutdown"}': wire.Shutdown(),
}  # fmt: skip
LINES = [line.encode() for line in FROM_EXTENSION]

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["type", "id", "name", "content", "schema", "open_panel", "modified_args", "lines", "x"])
NAMES = st.sampled_from([json.loads(line)["type"] for line in LINES] + ["nope"])
NEARLY_FRAMES = st.builds(
    lambda fields, name: json.dumps({"type": name, **fields}).encode(), st.dictionaries(FIELDS, JSON, max_size=4), NAMES
)


def refused(line: bytes) -> tuple[str, bytes, str]:
    """Return why a line is no frame, and the id and type that could be read."""
    with pytest.raises(ProtocolError) as caught:
        wire.decode_from_extension(line)
    return str(caught.value), caught.value.frame_id, caught.value.frame_type


@pytest.mark.parametrize(("line", "frame"), FROM_EXTENSION.items(), ids=FROM_EXTENSION)
def test_a_frame_from_an_extension_is_read_and_written_as_in_the_documents(
    line: str, frame: wire.AnyFromExtension
) -> None:
    assert wire.decode_from_extension(line.encode()) == frame
    assert json.loads(wire.encode_frame(frame)) == json.loads(line)
    assert wire.encode_frame(frame).startswith(b'{"type":"%b"' % wire.name_of(frame).encode())


@pytest.mark.parametrize(("line", "frame"), TO_EXTENSION.items(), ids=TO_EXTENSION)
def test_a_frame_to_an_extension_is_written_byte_for_byte_as_in_the_documents(
    line: str, frame: wire.AnyToExtension
) -> None:
    assert wire.encode_frame(frame) == line.encode() + b"\n"
    assert wire.decode_to_extension(line.encode()) == frame


@given(line=st.binary() | NEARLY_FRAMES | JSON.map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b'{"type":"notify","message":' + b"[" * 100_000)
@example(b'{"type":"register_tool","name":"a","schema":' + b'{"a":' * 100_000)
@example(b'{"type":"ready","type":"ready"' + b"[" * 100_000)
@example(b'{"id":' + b"9" * 5000 + b',"type":"tool_result"}')
@example(b'{"id":1e999,"type":"tool_result"}')
@example(b'{"id":"\\ud800","type":"nope"}')
@example(b'{"type":"\\ud800"}')
@example(b'{"type":"notify","message":"\xff"}')
@example(b'{"type":"notify","x":"\xff","message":"a"}')
@example(b"\xef\xbb\xbf{}")
@example(b"\0")
def test_any_line_is_a_frame_or_a_protocol_error(line: bytes) -> None:
    match decoded(line):
        case ProtocolError() as problem:
            assert problem.frame_id == b"" or isinstance(json.loads(problem.frame_id), str | int)
        case frame:
            assert decoded(wire.encode_frame(frame)) == frame


def decoded(line: bytes) -> wire.AnyFromExtension | ProtocolError:
    try:
        return wire.decode_from_extension(line)
    except ProtocolError as problem:
        return problem


@given(lines=st.lists(st.sampled_from(LINES) | NEARLY_FRAMES, max_size=5), data=st.data())
def test_chunks_make_no_difference(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\r\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:end] for start, end in pairwise([0, *cuts, len(stream)])]
    bytewise = [stream[at : at + 1] for at in range(len(stream))]
    assert read(chunks) == read(bytewise) == read([stream])


def read(chunks: list[bytes]) -> list[Any]:
    splitter = LineSplitter(max_line_bytes=wire.MAX_LINE_BYTES)
    frames: list[Any] = []
    for line in (line for chunk in chunks for line in splitter.feed(chunk)):
        assert isinstance(line, bytes)
        frame = decoded(line)
        frames.append((str(frame), frame.frame_id) if isinstance(frame, ProtocolError) else frame)
    return frames


@pytest.mark.parametrize(
    ("line", "frame_id", "frame_type"),
    [
        (b"hello there", b"", ""),
        (b"[]", b"", ""),
        (b"{}", b"", ""),
        (b'{"id":"2","type":5}', b'"2"', ""),
        (b'{"id":7,"type":"tool_result"}', b"7", "tool_result"),
        (b'{"id":true,"type":"tool_result"}', b"", "tool_result"),
        (b'{"id":"1","type":"tool_result","content":"x"}', b'"1"', "tool_result"),
        (b'{"id":"1","type":"tool_result","content":[{"text":"x"}]}', b'"1"', "tool_result"),
        (b'{"id":"1","type":"tool_result","is_error":"no"}', b'"1"', "tool_result"),
        (b'{"id":"","type":"tool_result"}', b'""', "tool_result"),
        (b'{"id":"1","type":"command_response","action":"dance"}', b'"1"', "command_response"),
        (b'{"id":"1","type":"command_response","open_panel":{"title":"x"}}', b'"1"', "command_response"),
        (b'{"id":"1","type":"event_intercept_response","modified_args":[1]}', b'"1"', "event_intercept_response"),
        (b'{"id":"1","type":"event_intercept_response","block":1}', b'"1"', "event_intercept_response"),
        (b'{"id":"1","type":"tool_result","x":"\xff"}', b'"1"', "tool_result"),
        (b'{"type":"hello"}', b"", "hello"),
        (b'{"type":"hello","name":"../x"}', b"", "hello"),
        (b'{"type":"hello","name":""}', b"", "hello"),
        (b'{"type":"register_command","name":"a b"}', b"", "register_command"),
        (b'{"type":"register_command","name":"/a"}', b"", "register_command"),
        (b'{"type":"register_command","name":"a\\n"}', b"", "register_command"),
        (b'{"type":"register_tool","name":"a.b"}', b"", "register_tool"),
        (b'{"type":"register_tool","name":"a\\n"}', b"", "register_tool"),
        (b'{"type":"register_tool","name":"a","schema":[]}', b"", "register_tool"),
        (b'{"type":"subscribe","on_failure":"Block"}', b"", "subscribe"),
        (b'{"type":"notify"}', b"", "notify"),
        (b'{"type":"panel_render","panel_id":"p","lines":"x"}', b"", "panel_render"),
        (b'{"type":"ready","type":"ready"}', b"", ""),
        (b'{"type":"shutdown"}', b"", "shutdown"),
    ],
)
def test_an_invalid_frame_is_refused_with_the_readable_part(line: bytes, frame_id: bytes, frame_type: str) -> None:
    reason, *read = refused(line)
    assert read == [frame_id, frame_type]
    assert reason


def test_a_frame_of_another_version_is_distinguished_from_an_invalid_one() -> None:
    with pytest.raises(wire.UnknownFrame, match="unknown frame 'dance'"):
        wire.decode_from_extension(b'{"type":"dance","id":"1"}')
    with pytest.raises(wire.UnknownFrame, match="unknown frame 'dance'"):
        wire.decode_to_extension(b'{"type":"dance"}')


def test_a_refusal_explains_the_error_in_words() -> None:
    assert refused(b"\xef\xbb\xbf{}")[0] == "not a JSON object: the line begins with a byte order mark"
    assert refused(b'{"type":"notify","message":"\xff"}')[0] == "notify: invalid UTF-8 at byte 28"
    assert refused(b'{"type":"ready","x":' + b"[" * 100_000)[0] == "not a frame: the JSON is nested too deeply"
    assert refused(b'{"type":"tool_result","id":"1","content":5}')[0] == (
        "tool_result: content must be a list, not a whole number"
    )
    assert refused(b'{"type":"ready","type":"ready"}')[0] == "not a frame: the frame has more than one type"


def test_null_counts_as_absent_except_in_foreign_values() -> None:
    line = b'{"type":"event_intercept_response","id":"1","block":null,"reason":null,"modified_args":{"a":null}}'
    assert wire.decode_from_extension(line) == wire.EventInterceptResponse("1", modified_args={"a": None})
    line = b'{"type":"tool_result","id":"1","content":[{"type":"text","text":null,"data":null}],"is_error":null}'
    assert wire.decode_from_extension(line) == wire.ToolResult("1", (wire.ContentBlock("text"),))
    line = b'{"type":"command_response","id":"1","prompt":null,"open_panel":{"id":"p","title":null}}'
    assert wire.decode_from_extension(line) == wire.CommandResponse("1", open_panel=wire.Panel("p"))


def test_a_lone_surrogate_is_read_and_written_as_a_replacement() -> None:
    frame = wire.decode_from_extension(b'{"type":"notify","message":"a\\ud83d"}')
    assert frame == wire.Notify("a�")
    assert wire.encode_frame(wire.CommandInvoked("1", "x", "a\ud83d")).endswith('"args":"a�"}\n'.encode())


def test_a_long_result_with_a_lone_surrogate_is_read() -> None:
    content = [{"type": "text", "text": "x" * 200_000}, {"type": "text", "text": "\udc80"}]
    line = json.dumps({"type": "tool_result", "id": "1", "content": content}).encode()
    assert wire.decode_from_extension(line) == wire.ToolResult(
        "1", (wire.ContentBlock("text", "x" * 200_000), wire.ContentBlock("text", "�"))
    )


def test_every_written_frame_is_json() -> None:
    line = wire.encode_frame(wire.ToolCall("1", "x", {"a": float("nan"), "b": "\u2028\n"}))
    assert line.count(b"\n") == 1
    assert json.loads(line)["args"] == {"a": None, "b": "\u2028\n"}


def test_a_registration_is_bounded_and_a_result_may_be_long() -> None:
    long = "x" * wire.MAX_REGISTRATION_BYTES
    line = wire.encode_frame(wire.RegisterTool("a", long))[:-1]
    assert refused(line) == ("register_tool: longer than 262144 bytes", b"", "register_tool")
    result = wire.ToolResult("1", (wire.ContentBlock("text", long),))
    assert wire.decode_from_extension(wire.encode_frame(result)) == result


def test_unknown_fields_are_ignored() -> None:
    assert wire.decode_from_extension(b'{"type":"ready","since":{"a":[1]},"name":5}') == wire.Ready()


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"tool_result","id":"type","content":[{"type":"text","text":"\\"type\\""}]}',
        b'{"type":"notify","message":"\\u0074ype"}',
        b'{"\\u0074ype":"notify","message":"x"}',
        b'{"x":{"type":1},"x":2,"type":"ready"}',
    ],
)
def test_a_type_inside_a_frame_or_spelled_strangely_is_not_a_second_one(line: bytes) -> None:
    assert wire.name_of(wire.decode_from_extension(line)) == (json.loads(line)["type"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"\\u0074ype":"ready","type":"ready"}', "not a frame: the frame has more than one type"),
        (b'{"x":{"type":1},"type":"ready","type":"ready"}', "not a frame: the frame has more than one type"),
        (b'{"x":[' + b'{"type":1},' * 20_000 + b'1],"x":1,"type":"ready"}',
         "not a frame: the frame repeats or hides its keys"),
        (b'{"type":"notify","message":"' + b"\\ud800" * 20_001 + b'"}',
         "not a JSON object: JSON is malformed: invalid utf-16 surrogate pair (byte 40)"),
        (b'{"type":"notify","id":"1","message":"' + b"x" * 70_000 + b'\xff"}',
         "not a frame: invalid UTF-8 at byte 70037"),
    ],
    ids=["hidden", "twice", "repeated and long", "many halves", "long and not UTF-8"],
)  # fmt: skip
def test_a_frame_that_would_be_slow_to_inspect_is_refused(line: bytes, reason: str) -> None:
    assert refused(line) == (reason, b"", "")
