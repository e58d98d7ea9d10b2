"""The order of frames in zot RPC v1, as a machine that takes them one by one and refuses the first wrong one."""

from __future__ import annotations

import enum
from collections import deque
from typing import Any

COUNTERS = {"input", "output", "cache_read", "cache_write", "cost_usd"}

#: The keys of each event besides its type; those after the bar may be missing.
KEYS: dict[str, tuple[set[str], set[str]]] = {
    "user_message": ({"content", "time"}, set()),
    "turn_start": ({"step"}, set()),
    "assistant_start": (set(), set()),
    "text_delta": ({"delta"}, set()),
    "thinking_delta": ({"delta"}, set()),
    "tool_use_start": ({"id", "name"}, set()),
    "tool_use_args": ({"id", "delta"}, set()),
    "tool_use_end": ({"id"}, set()),
    "usage": (COUNTERS | {"cumulative"}, {"price_known", "auto"}),
    "assistant_message": ({"content", "time"}, set()),
    "tool_call": ({"id", "name", "args"}, set()),
    "turn_end": ({"stop"}, {"error"}),
    "tool_progress": ({"id", "text"}, set()),
    "tool_result": ({"id", "is_error", "content"}, {"details"}),
    "retry": ({"reason", "attempt", "delay_ms"}, set()),
    "approval_request": ({"id", "tool", "args", "summary", "deadline"}, set()),
    "question_request": ({"id", "origin", "message", "deadline"}, {"fields", "url", "call"}),
    "question_answer": ({"id", "action"}, {"by"}),
    "error": ({"message"}, set()),
    "compact_done": ({"summary"}, {"auto", "pruned"}),
    "done": (set(), set()),
    "ext_notify": ({"extension", "level", "message"}, {"blocked"}),
    "ext_waiting": ({"extension", "what", "since"}, set()),
    "panel_open": ({"extension", "panel_id", "title", "lines"}, {"footer"}),
    "panel_render": ({"extension", "panel_id", "title", "lines"}, {"footer"}),
    "panel_close": ({"extension", "panel_id"}, set()),
}
#: Frames outside any run, allowed at any time.
ASIDE = {"ext_notify", "ext_waiting", "panel_open", "panel_render", "panel_close"}


class At(enum.Enum):
    """Position in a stream."""

    IDLE = "between runs"
    ACCEPTED = "waiting for the user's message"
    READY = "before a model call"
    ASKED = "waiting for the model"
    STREAMING = "hearing the model"
    COUNTED = "after usage"
    SAID = "after the model's message"
    USING = "running tools"
    ANSWERED = "after the last turn"
    FAILED = "after a turn that failed"
    ENDING = "waiting for done"
    COMPACTING = "compacting"
    COMPACTED = "after the usage of a compact"


class Disorder(AssertionError):
    """An unexpected frame."""


class Grammar:
    """Checks the frames of one connection and their order. ``runs`` counts the finished ones."""

    def __init__(
        self, *, answers_are_judged: bool = False, resumed: bool = False, compacts_unseen: bool = False
    ) -> None:
        self._compacts_unseen = compacts_unseen
        self._judged = answers_are_judged
        self._resumed = resumed
        self.at = At.IDLE
        self.runs = 0
        self.seq = 0
        self._steps = 0
        self._said = ""
        self._calls: list[str] = []
        self._announced: list[str] = []
        self._open: list[str] = []
        self._error = ""
        self._totals = dict.fromkeys(COUNTERS, 0.0)
        self._seen: deque[dict[str, Any]] = deque(maxlen=13)

    def take(self, frame: dict[str, Any]) -> None:
        """Take the next frame; raise Disorder if it must not come now, or not like this."""
        self._seen.append(frame)
        match frame["type"]:
            case "response":
                self._answered(frame)
            case kind if kind in ASIDE:
                self._check_keys(kind, frame)
            case kind:
                self._check_keys(kind, frame)
                self._happened(kind, frame)

    def finish(self) -> None:
        """Take the end of the output: nothing may be open."""
        if self.at is not At.IDLE:
            self._refuse("the end of the output")

    def _answered(self, frame: dict[str, Any]) -> None:
        expected = {"type", "command", "success"}
        optional = {"id", "data"} if frame["success"] else {"id"}
        expected |= set() if frame["success"] else {"error"}
        if not expected <= frame.keys() <= expected | optional:
            self._refuse(f"a response with the keys {sorted(frame)}")
        if not frame["success"]:
            return
        match self.at, frame["command"]:
            case At.IDLE, "prompt" | "steer":
                self.at, self._steps = At.ACCEPTED, 0
            case At.IDLE, "run_command" if frame["data"]["action"] == "prompt":
                self.at, self._steps = At.ACCEPTED, 0
            case At.IDLE, "compact":
                self.at = At.COMPACTING
            case At.READY | At.ANSWERED, "steer":
                self.at = At.ACCEPTED
            case _, "prompt" | "steer" | "compact":
                self._refuse(f"the start of a {frame['command']}")
            case _:
                pass

    def _happened(self, kind: str, frame: dict[str, Any]) -> None:
        match self.at, kind:
            case At.ACCEPTED, "user_message":
                self.at = At.READY
            case At.ANSWERED, "user_message" if self._judged:
                self.at = At.READY
            case At.ANSWERED, "error" if self._judged:
                self.at = At.ENDING
            case At.READY, "turn_start" if frame["step"] == self._steps + 1:
                self.at, self._steps = At.ASKED, self._steps + 1
                self._said, self._calls, self._announced, self._open = "", [], [], []
            case At.ASKED | At.COMPACTING, "retry":
                pass
            case At.ASKED, "usage" if frame.get("auto"):
                self._count(frame)
            case At.ASKED, "compact_done" if frame.get("auto"):
                pass
            case At.ASKED, "assistant_start":
                self.at = At.STREAMING
            case At.STREAMING, "text_delta":
                self._said += frame["delta"]
            case At.STREAMING, "thinking_delta":
                pass
            case At.STREAMING, "tool_use_start" if frame["id"] not in self._open:
                self._open.append(frame["id"])
            case At.STREAMING, "tool_use_args" | "tool_use_end" if frame["id"] in self._open:
                pass
            case At.STREAMING, "usage":
                self.at = At.COUNTED
                self._count(frame)
            case At.COUNTED, "assistant_message":
                self.at = At.SAID
                self._check_message(frame["content"])
            case At.SAID, "tool_call" if frame["id"] in self._open:
                self._calls.append(frame["id"])
            case At.USING, "approval_request" | "question_request" | "question_answer":
                pass
            case At.USING, "tool_progress" if frame["id"] == self._calls[0]:
                pass
            case At.USING, "tool_result" if frame["id"] == self._calls[0]:
                del self._calls[0]
                self.at = At.USING if self._calls else At.READY
            case At.COMPACTING, "usage":
                self.at = At.COMPACTED
                self._count(frame)
            case At.COMPACTED, "compact_done":
                self.at = At.ENDING
            case _, "turn_end":
                self._turn_ended(frame)
            case At.FAILED, "error" if frame["message"] == self._error:
                self.at = At.ENDING
            case At.READY | At.COMPACTING | At.COMPACTED, "error":
                self.at = At.ENDING
            case At.ENDING | At.ANSWERED, "done":
                self.at = At.IDLE
                self.runs += 1
            case _:
                self._refuse(kind)

    def _turn_ended(self, frame: dict[str, Any]) -> None:
        match self.at, frame["stop"]:
            case At.COUNTED, _ if self._said:
                self._refuse("the end of a turn whose text was not repeated")
            case At.SAID, "tool_use" if self._calls and self._calls == self._announced:
                self.at = At.USING
            case At.SAID | At.COUNTED, "end_turn" | "length" if not self._announced:
                self.at = At.ANSWERED
            case At.ASKED | At.SAID | At.COUNTED, "error" if frame.get("error") and not self._announced:
                self.at, self._error = At.FAILED, frame["error"]
            case (
                At.READY | At.ASKED | At.SAID | At.COUNTED | At.ANSWERED | At.COMPACTING | At.COMPACTED,
                "aborted",
            ) if "error" not in frame:
                self.at = At.ENDING
            case _:
                self._refuse(f"turn_end with stop {frame['stop']!r}")

    def _check_message(self, content: list[dict[str, Any]]) -> None:
        """Check that a message equals its deltas; its calls are the ones to announce."""
        text = "".join(block["text"] for block in content if block["type"] == "text")
        if text != self._said:
            self._refuse(f"a message that says {text!r}, when its deltas said {self._said!r},")
        self._announced = [block["id"] for block in content if block["type"] == "tool_call"]

    def _count(self, frame: dict[str, Any]) -> None:
        if self._compacts_unseen:
            return
        if self._resumed:  # Earlier usage is not known here.
            self._totals = {name: frame["cumulative"][name] - frame[name] for name in COUNTERS}
            self._resumed = False
        for name in COUNTERS:
            self._totals[name] += frame[name]
            if abs(frame["cumulative"][name] - self._totals[name]) > 1e-9:
                self._refuse(f"a sum of {frame['cumulative'][name]} for {name}, which is {self._totals[name]}")

    def _check_keys(self, kind: str, frame: dict[str, Any]) -> None:
        if kind not in KEYS:
            self._refuse(f"an unknown {kind}")
        needed, optional = KEYS[kind]
        keys = frame.keys() - {"type"}
        if "seq" in keys:
            if frame["seq"] != self.seq + 1:
                self._refuse(f"number {frame['seq']} after {self.seq}")
            self.seq += 1
            keys -= {"seq", "run"}
        if not needed <= keys <= needed | optional:
            self._refuse(f"{kind} with the keys {sorted(keys)}")

    def _refuse(self, what: str) -> None:
        history = "\n  ".join(str(frame)[:160] for frame in self._seen)
        raise Disorder(f"{what} must not come {self.at.value}. The last frames:\n  {history}")
