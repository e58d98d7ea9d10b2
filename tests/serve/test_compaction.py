"""Automatic compaction on the wire: off unless configured, and shown only to clients that ask for it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from grammar import Grammar
from harness import Frame, Zot, types

FLAGS = ("--provider", "lab")


def fill(process: Zot) -> list[list[Frame]]:
    """Prompt until the fourth prompt takes about 7000 tokens; return the events of each run."""
    runs = []
    for tokens in (1000, 3000, 5000, 7000):
        lines = f'say "{"x" * 4000}" ;; usage input={tokens} output=1000'
        process.send({"type": "prompt", "message": f"!script {lines}"})
        runs.append(process.until(type="done"))
    return runs


@pytest.mark.parametrize("flags", [(), ("--auto-compact", "off"), ("--auto-compact", "off", "--compact-at", "6500")])
def test_a_conversation_is_not_compacted_unless_the_client_asked_for_it(
    zot: Callable[..., Zot], flags: tuple[str, ...]
) -> None:
    process = zot(*FLAGS, *flags)
    process.send({"type": "hello", "features": ["compaction"]})
    process.read()
    assert "compact_done" not in types([frame for frames in fill(process) for frame in frames])
    assert process.ask({"type": "get_state"})["data"]["message_count"] == 8
    process.finish()


@pytest.mark.parametrize("flags", [("--compact-at", "6500"), ("--auto-compact", "on", "--compact-at", "6500")])
def test_a_client_without_the_feature_gets_the_known_order_and_the_cost(
    zot: Callable[..., Zot], flags: tuple[str, ...]
) -> None:
    process = zot(*FLAGS, *flags)
    process.grammar = Grammar(compacts_unseen=True)
    runs = fill(process)
    assert types(runs[3]) == types(runs[0])
    assert process.ask({"type": "get_state"})["data"]["message_count"] == 6
    used = [frame["cumulative"]["input"] for frames in runs for frame in frames if frame["type"] == "usage"]
    assert [after - before for before, after in pairwise(used)] == [3000, 5000, 7100]
    process.finish()


def test_a_client_with_the_feature_gets_the_compaction_and_its_cost(zot: Callable[..., Zot]) -> None:
    process = zot(*FLAGS, "--compact-at", "6500")
    process.send({"type": "hello", "features": ["compaction"]})
    assert process.read()["data"]["features"] == ["compaction"]
    *_, frames = fill(process)
    assert types(frames)[2:6] == ["turn_start", "usage", "compact_done", "assistant_start"]
    assert frames[3]["auto"] is frames[4]["auto"] is True
    assert (frames[3]["input"], frames[3]["cumulative"]["input"]) == (100, 9100)
    process.send({"type": "undo_compact", "id": 1})
    assert process.read()["success"] is True
    assert process.ask({"type": "get_state"})["data"]["message_count"] == 8
    process.finish()


def test_a_compaction_cannot_be_undone_under_a_run(zot: Callable[..., Zot]) -> None:
    process = zot(*FLAGS)
    process.send({"type": "prompt", "message": "!stall"}, {"type": "undo_compact", "id": 1}, {"type": "abort"})
    refused = [frame for frame in process.until(type="done") if frame.get("command") == "undo_compact"]
    assert [(frame["success"], "cannot be changed while" in frame["error"]) for frame in refused] == [(False, True)]
    process.finish()
