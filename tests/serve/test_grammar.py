"""The checker itself: it takes every stream that was recorded, and none that was tampered with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from grammar import Disorder, Grammar
from harness import Frame, Zot

#: How many of them there are is up to the model and the tools, so one fewer or one more is no disorder.
FREE = {"tool_use_args", "tool_use_end", "tool_progress"}


def verdict(frames: list[Frame]) -> str | None:
    """Return the error in a whole stream; None if it is valid."""
    grammar = Grammar()
    try:
        for frame in frames:
            grammar.take(frame)
        grammar.finish()
    except Disorder as problem:
        return str(problem)
    return None


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> list[Frame]:
    """Everything that can happen, one after the other."""
    scenes = ["!tools", "!say 2 ok", "!cut", "!status 401", "!length", "!bash echo hi"]
    with Zot(cwd=tmp_path_factory.mktemp("grammar")) as process:
        process.send(*({"type": "prompt", "message": scene} for scene in scenes), {"type": "compact"})
        for _ in range(len(scenes) + 1):
            process.until(type="done")
        process.send({"type": "prompt", "message": "!stall"}, {"type": "abort"})
        process.finish()
        return process.frames


def test_recorded_transcripts_are_in_order(stream: list[Frame]) -> None:
    assert verdict(stream) is None
    assert {frame["type"] for frame in stream} >= {"tool_result", "error", "compact_done", "done", "usage"}


def test_a_missing_frame_is_noticed(stream: list[Frame]) -> None:
    for at, frame in enumerate(stream):
        if frame["type"] not in FREE and frame.get("command") != "abort":
            assert verdict(stream[:at] + stream[at + 1 :]), frame


def test_a_frame_that_comes_twice_is_noticed(stream: list[Frame]) -> None:
    for at, frame in enumerate(stream):
        if frame["type"] not in FREE and frame.get("command") != "abort":
            assert verdict(stream[: at + 1] + stream[at:]), frame


def test_frames_that_changed_places_are_noticed(stream: list[Frame]) -> None:
    for at, (one, other) in enumerate(pairwise(stream)):
        if {one["type"], other["type"]} <= {*FREE, "tool_use_start", "text_delta"} or "abort" in (
            one.get("command"),
            other.get("command"),
        ):
            continue
        assert verdict([*stream[:at], other, one, *stream[at + 2 :]]), (one, other)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: {**frame, "surprise": 1},
        lambda frame: {key: value for key, value in frame.items() if key in ("type", "command", "success")},
        lambda frame: {**frame, "type": "surprise"},
    ],
)
def test_wrong_keys_are_noticed(stream: list[Frame], spoil: Callable[[Frame], Frame]) -> None:
    for at, frame in enumerate(stream):
        if (spoiled := spoil(frame)) != frame and frame["type"] != "response":
            assert verdict([*stream[:at], spoiled, *stream[at + 1 :]]), frame
