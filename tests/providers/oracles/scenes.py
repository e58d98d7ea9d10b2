"""Scenes played to every official client, and the result that each must decode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from fakes import PNG
from zot.messages import CallBlock, ImageBlock, Message, ResultBlock, TextBlock, ThinkingBlock, ToolSpec
from zot.providers.base import Api, EncodedMessages, ModelRequest

Call: TypeAlias = tuple[str, str, Mapping[str, Any]]
PICTURE = PNG.data


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """A reply as a client understood it. ``counters`` are input besides the cached, output, cache read and write."""

    text: str = ""
    thinking: str = ""
    sealed: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    stop: str = "end_turn"
    counters: tuple[int, int, int, int] = (100, 20, 0, 0)


#: In lab's words. Ids are given, because each API makes up its own.
SCENES: Mapping[str, Heard] = {
    'say "Hel" "lo"': Heard(text="Hello"),
    "chunk 1 ;; say 'né 😀'": Heard(text="né 😀"),
    "flood 300": Heard(text="." * 300),
    'think "Let me" " see" ;; say There.': Heard(thinking="Let me see", text="There."),
    "redacted c2VhbGVk ;; say There.": Heard(sealed=("c2VhbGVk",), text="There."),
    'call read {"path": "é", "n": [1, null]} id=c1 chunks=4': Heard(
        calls=(("c1", "read", {"path": "é", "n": [1, None]}),), stop="tool_use"
    ),
    'think Hm ;; say All ;; call read {"path": "a"} id=c1 ;; call bash {} id=c2 chunks=2 ;; call read {} id=c3': Heard(
        thinking="Hm",
        text="All",
        calls=(("c1", "read", {"path": "a"}), ("c2", "bash", {}), ("c3", "read", {})),
        stop="tool_use",
    ),
    "say Counted. ;; usage input=1200 output=34 cache_read=560 cache_write=0": Heard(
        text="Counted.", counters=(1200, 34, 560, 0)
    ),
    "say Twice. ;; usage-twice ;; usage input=7 output=5 cache_read=3": Heard(text="Twice.", counters=(7, 5, 3, 0)),
    'say "and so" ;; stop length': Heard(text="and so", stop="length"),
    'say "I cannot" ;; stop refusal': Heard(text="I cannot", stop="refusal"),
    "say a ;; ping 3 ;; say b": Heard(text="ab"),
}

#: The status of a refusal, and the kind of error behind it where the vendors agree on one.
STATUSES = (400, 401, 403, 404, 413, 422, 429, 500, 503, 529)

#: What a service answers that wants to be asked again, at once where the client can be told so.
RETRIED = (408, 409, 429, 500, 502, 503, 504, 529)
AGAIN = "retry-after-ms=1 ;; repeat 2 ;; --- ;; say ok"

TOOL = ToolSpec("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})

#: A conversation with everything in it, after which the model is to speak.
TALK = (
    Message("user", (TextBlock("Look at these."), PNG, ImageBlock("image/tiff", b"II*")), "t"),
    Message(
        "assistant",
        (
            ThinkingBlock("Hm", "c2ln", id="rs_1"),
            TextBlock("I will."),
            CallBlock("c1", "read", {"path": "a"}, signature="c2ln"),
            CallBlock("c2", "read", None, malformed='{"pa'),
        ),
        "t",
        origin="lab",
    ),
    Message(
        "tool",
        (ResultBlock("c1", False, (TextBlock("It says."), PNG)), ResultBlock("c2", True, (TextBlock("No."),))),
        "t",
    ),
    Message("assistant", (ThinkingBlock(redacted="c2VhbGVk"), TextBlock("There.")), "t", origin="lab"),
    Message("user", (TextBlock("And?"),), "t"),
    Message("assistant", (CallBlock("functions.read:1", "read", {}),), "t", origin="another"),
    Message("tool", (ResultBlock("functions.read:1", False, ()),), "t"),
)


def told(lines: str) -> str:
    """Return the prompt that makes the built-in script play these lines, at every request."""
    return f"!script {lines}"


def sent(api: Api, model: str) -> Any:
    """Return our request for the whole conversation."""
    request = ModelRequest(model, "Be brief.", TALK, (TOOL,), 8000, "medium", EncodedMessages())
    return msgspec.json.decode(api.request(request, "key").body)
