"""Conversations recorded with the original zot, held again with ours: same types, same order, same keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness import Frame, Zot, serving
from zot.providers.lab.script import Script

TRACES = Path(__file__).parent.parent / "transcripts" / "rpc"

#: The original's scripted model understood other words; these play the same there and here.
PROMPTS = {
    "!status 429": "!script status 429 retry-after=0 ;; repeat",
    "hello again": "!say 4 hello again",
    "SCRIPT:two calls": (
        '!script say "two calls" ;; call read {"path": "a.txt"} id=tA ;; call bash {"command": "echo hi"} id=tB'
        ' chunks=2 ;; call nosuch {"x": 1} id=tC ;; call read {"path": "missing.txt"} id=tD ;; say "after tools"'
        ' ;; --- ;; say "ok"'
    ),
    "SCRIPT:before": (
        '!script say before ;; call bash {"command": "echo 1"} id=tA chunks=2 ;; call-raw nosuch "{bad" id=tB'
        " ;; say after ;; --- ;; say fin"
    ),
    "SCRIPT:parts": r'!script say "h\u00e9 " "\u2603 " "\ud83d\ude00" "\u2028"',
    "SCRIPT:usage": "!usage 1234 567 8901 234",
}
#: An image that no API takes is told to the model as text, and would be taken for the prompt.
SCRIPTS = {"prompt_images": 'say "nice image"'}
ANTHROPIC = ("--provider", "anthropic", "--model", "claude-sonnet-4-5", "--api-key", "none")
OPENAI = ("--provider", "openai", "--model", "gpt-5")
FLAGS = {"max_steps": ("--max-steps", "2")}
TOKENS = {"hello_token_right": "s3cret", "hello_token_wrong": "s3cret"}
ENDS_ITSELF = {"hello_token_wrong"}

#: What is compared by value; of everything else only that it is there, and what kind of thing it is.
TELLING = {
    "type", "command", "success", "stop", "step", "is_error", "name", "role", "busy", "message_count", "started",
    "pong", "protocol_version", "provider", "model", "mime_type", "bytes", "input", "output", "cache_read",
    "cache_write", "cost_usd",
}  # fmt: skip
#: How many of these there are is up to the pace of a model or a tool.
REPEATED = {"text_delta", "tool_use_args", "tool_progress"}

DONE: Frame = {"type": "done"}
ABORTED: Frame = {"type": "turn_end", "stop": "aborted"}
ANY: Any = "..."


def of_compact(frame: Frame) -> list[Frame]:
    """A compact's tokens are counted, and it ends with `done` like everything else."""
    match frame:
        case {"type": "compact_done"}:
            return [dict.fromkeys(("input", "output", "cache_read", "cache_write", "cost_usd"), ANY)
                    | {"type": "usage", "cumulative": ANY}, frame, DONE]  # fmt: skip
        case {"type": "error"}:
            return [frame, DONE]
        case _:
            return [frame]


def counting_compacts(frames: list[Frame]) -> list[Frame]:
    """After a compact the sums exceed the original's by the tokens of the compact."""
    at = next(index for index, frame in enumerate(frames) if frame["type"] == "compact_done")
    for frame in frames[at + 1 :]:
        if "cumulative" in frame:
            frame["cumulative"] = ANY
        elif frame.get("command") == "get_state":
            frame["data"]["usage"] = ANY
    return frames


def of_abort_in_tools(frame: Frame) -> list[Frame]:
    """An abort is reported in every phase, also after the results of a turn's tools."""
    return [frame, ABORTED] if frame["type"] == "tool_result" else [frame]


def of_busy_until_done(frame: Frame) -> list[Frame]:
    """`busy` is true until `done` is written; the original reported false as soon as it had read an abort."""
    if frame.get("command") == "get_state" and frame["id"] == "4":
        frame["data"]["busy"] = True
    return [frame]


def of_clear_while_busy(frame: Frame) -> list[Frame]:
    """`clear` while a prompt runs is refused, so the prompt is still there afterwards."""
    if frame.get("id") == "5":
        return [{"type": "response", "id": "5", "command": "clear", "success": False, "error": ""}]
    if frame.get("command") == "get_messages":
        frame["data"]["messages"].insert(0, {"role": "user", "content": [{"type": "text", "text": ""}], "time": ""})
    return [frame]


def of_helpful_refusals(frames: list[Frame]) -> list[Frame]:
    """Numeric ids are accepted, and an id or a type that can be read is echoed."""
    failed = [index for index, frame in enumerate(frames) if frame["command"] == "" and "malformed" in frame["error"]]
    number, type_is_number, list_id, dict_id, bool_id = failed[4:9]
    frames[number] = {"type": "response", "id": 4, "command": "ping", "success": True, "data": {"pong": True}}
    frames[type_is_number]["id"] = "5"
    for index in (list_id, dict_id, bool_id):
        frames[index]["command"] = "ping"
    return frames


def of_another_server(frames: list[Frame]) -> list[Frame]:
    """The price of a model at a custom address is unknown."""
    for frame in frames:
        for counters in (frame, frame.get("cumulative", {})):
            if "cost_usd" in counters:
                counters["cost_usd"] = ANY
    return frames


def of_no_mirror(frames: list[Frame]) -> list[Frame]:
    """Only images follow the results as the user's; the original repeated every short text there."""
    for frame in frames:
        if frame.get("command") == "get_messages":
            del frame["data"]["messages"][3]
    return of_another_server(frames)


def of_our_catalogue(frame: Frame) -> list[Frame]:
    """There are more models by now; each is described with the same keys."""
    frame["data"]["models"] = frame["data"]["models"][:1]
    return [frame]


EACH: dict[str, Callable[[Frame], list[Frame]]] = {
    "abort_mid_bash": of_abort_in_tools,
    "abort_mid_stream": of_busy_until_done,
    "clear": of_clear_while_busy,
    "compact_empty": of_compact,
    "compact_normal": of_compact,
    "second_prompt_queued": of_compact,
    "get_models": of_our_catalogue,
}
WHOLE: dict[str, Callable[[list[Frame]], list[Frame]]] = {
    "compact_normal": counting_compacts,
    "openai_multi_tools": of_another_server,
    "openai_tool_bash": of_no_mirror,
    "protocol_errors": of_helpful_refusals,
}


def as_we_spell_it(frame: Frame) -> Frame:
    """`end` is `end_turn`, and an abort is no error."""
    match frame:
        case {"type": "turn_end", "stop": "end"}:
            return {**frame, "stop": "end_turn"}
        case {"type": "turn_end", "stop": "aborted"}:
            return ABORTED
        case _:
            return frame


@pytest.mark.parametrize("name", sorted(path.stem for path in TRACES.glob("*.ndjson")))
def test_a_recorded_conversation_is_reproduced(
    name: str, zot: Callable[..., Zot], lab_url: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"line {number}\n" for number in range(1, 21)))
    env = {"ZOTCORE_RPC_TOKEN": TOKENS[name]} if name in TOKENS else {}
    with serving(Script.parse(SCRIPTS[name], name)) if name in SCRIPTS else nullcontext(lab_url) as url:
        provider = OPENAI if name.startswith("openai_") else ANTHROPIC
        process = zot(*provider, "--base-url", url, *FLAGS.get(name, ()), env=env)
        heard: list[Any] = []
        for asked, expected in exchanges(name):
            process.send(*asked)
            hear(process, heard, len(expected))
            assert heard == expected
    if name in ENDS_ITSELF:
        assert process.rest() == []
        assert process.wait() == 1
        assert process.errors().startswith("zot: rpc: ")
    else:
        assert process.finish() == []


def exchanges(name: str) -> Iterator[tuple[list[bytes], list[Any]]]:
    """Yield each message of the client with everything that it received before its next one."""
    steps = [json.loads(line) for line in (TRACES / f"{name}.ndjson").read_text().splitlines()]
    frames = [as_we_spell_it(json.loads(step["raw"])) for step in steps if step["dir"] == "s>c"]
    frames = WHOLE.get(name, list)(frames)
    answers = iter(frames)
    asked: list[bytes] = []
    heard: list[Any] = []
    answered = False
    differing = EACH.get(name, unchanged)
    for step in steps:
        if step["dir"] == "s>c":
            answered = True
            for frame in differing(next(answers)):
                note(heard, frame)
        elif step["dir"] == "c>s":
            if answered:
                yield asked, list(heard)
                asked, answered = [], False
            asked.append(retold(step["raw"]))
    yield asked, list(heard)


def unchanged(frame: Frame) -> list[Frame]:
    return [frame]


def retold(line: str) -> bytes:
    """Return the client's message, with a prompt that our scripted model understands."""
    for original, ours in PROMPTS.items():
        start, _, word = original.partition(":")
        if start in line and word in line and '"prompt"' in line:
            said = json.loads(line)
            return json.dumps({**said, "message": ours}).encode()
    return line.encode()


def hear(process: Zot, heard: list[Any], count: int) -> None:
    """Read until ``count`` different frames have arrived."""
    while len(heard) < count:
        frame = process.read()
        if frame.get("command") == "get_models":
            assert len({frozenset(model) for model in frame["data"]["models"]}) == 1
            frame = of_our_catalogue(frame)[0]
        note(heard, frame)


def note(heard: list[Any], frame: Frame) -> None:
    """Keep a frame. Of repeated ones only the first is kept, also if the answer to a command comes in between."""
    shape = shape_of(frame)
    before = next((one for one in reversed(heard) if one["type"] != "response"), None)
    if frame["type"] not in REPEATED or before != shape:
        heard.append(shape)


class Anything:
    """Equal to any value."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def shape_of(value: Any, key: str = "") -> Any:
    """Return the part of a frame that is compared."""
    if value == ANY and isinstance(value, str):
        return Anything()
    if key == "args":
        return "arguments"
    match value:
        case dict():
            return {name: shape_of(item, name) for name, item in value.items()}
        case list():
            return [shape_of(item, key) for item in value]
        case bool() | str() if key in TELLING:
            return value
        case int() | float() if key in TELLING and not isinstance(value, bool):
            return round(value, 9)
        case int() | float() if not isinstance(value, bool):
            return "number"
        case _:
            return type(value).__name__


def test_the_published_transcript_comes_out_line_by_line(zot: Callable[..., Zot]) -> None:
    """Another program's parser was validated against these six lines of a service that refused the key."""
    with serving(Script.parse("status 401\nrepeat")) as url:
        process = zot("--provider", "anthropic", "--base-url", url, "--api-key", "sk-placeholder")
        process.send(b'{"id":"1","type":"prompt","message":"check the current directory"}')
        frames = process.until(type="done")
    reason = frames[3]["error"]
    assert reason.startswith("anthropic: http 401: ")
    assert stable(frames) == [
        {"command": "prompt", "data": {"started": True}, "id": "1", "success": True, "type": "response"},
        {"content": [{"text": "check the current directory", "type": "text"}], "time": "TIME", "type": "user_message"},
        {"step": 1, "type": "turn_start"},
        {"error": reason, "stop": "error", "type": "turn_end"},
        {"message": reason, "type": "error"},
        {"type": "done"},
    ]
    assert process.finish() == []


def stable(frames: Sequence[Frame]) -> list[Frame]:
    return [{**frame, "time": "TIME"} if "time" in frame else frame for frame in frames]
