"""The conversations of reference/rpc.md and tools.md happen with the real program; rpc.md describes everything."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import PATIENCE_S, Zot, environment, play
from zot import events
from zot.commands.rpc import MANUAL
from zot.wire import rpc
from zot.wire.rpc_greeting import FEATURES

from .markdown import Block, blocks

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rpc.md"
TEXT = PAGE.read_text()
CONVERSATIONS = [*blocks(TEXT, "rpc"), *blocks(PAGE.with_name("tools.md").read_text(), "rpc")]


@pytest.mark.parametrize("block", CONVERSATIONS, ids=Block.id)
def test_a_conversation_runs_as_written(block: Block, zot: Callable[..., Zot]) -> None:
    hold(block.text, zot)


@pytest.mark.parametrize("block", blocks(TEXT, "sh"), ids=Block.id)
def test_a_command_line_works_as_written(block: Block, tmp_path: Path) -> None:
    program = tmp_path / "zot"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m zot "$@"\n')
    program.chmod(0o755)
    env = environment({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    output = subprocess.check_output(["sh", "-c", block.text], env=env, cwd=tmp_path, timeout=PATIENCE_S)
    assert output.endswith(b'{"type":"done"}\n')


@pytest.mark.parametrize("name", sorted(str(kind.__struct_config__.tag) for kind in typing.get_args(rpc.AnyCommand)))
def test_every_command_is_described(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("event", typing.get_args(events.AgentEvent), ids=lambda event: event.__name__)
def test_every_event_is_described_with_its_fields(event: type[events.BaseEvent]) -> None:
    name = str(event.__struct_config__.tag)
    if name == "approval_request":
        assert f"`{name}`" in TEXT
        return
    section = TEXT.partition("\n## Events\n")[2].partition("\n## ")[0]
    [row] = re.findall(rf"^\| `{name}` \|([^|]*)\|", section, re.MULTILINE)
    assert {*re.findall("`(.*?)`", row)} == {*event.__struct_fields__} - {"price_known", "reasoning", "auto", "pruned"}


@pytest.mark.parametrize("flag", [flag.name for flag in MANUAL.flags])
def test_every_flag_is_described(flag: str) -> None:
    assert re.search(rf"`{flag}[ `]", TEXT)


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_is_described(feature: str) -> None:
    assert f"\n| `{feature}` |" in TEXT


def test_the_grammar_describes_what_happens(zot: Callable[..., Zot]) -> None:
    [grammar] = blocks(TEXT, "grammar")
    run, compact = (re.compile(expression(grammar.text, name)) for name in ("run", "compact"))
    scenes = ["!tools", "!say 2 ok", "!cut", "!status 401", "!length", "!bash echo hi", "!loop true", "!stall"]
    with zot("--max-steps", "3") as process:
        for scene in scenes:
            process.send({"type": "prompt", "message": scene})
            if scene == "!stall":
                process.until(type="turn_start")
                process.send({"type": "abort"})
            process.until(type="done")
        process.send({"type": "compact"})
        process.finish()
    frames = [frame for frame in process.frames if frame.get("command") != "abort"]
    said = "".join(frame["type"] + (f"{{{frame['stop']}}} " if "stop" in frame else " ") for frame in frames)
    runs = [f"{part}done " for part in re.split(r"\bdone ", said) if part]
    assert len(runs) == len(scenes) + 1
    for one in runs[:-1]:
        assert run.fullmatch(one), one
        assert not run.fullmatch(one.replace("user_message ", "", 1))
    assert compact.fullmatch(runs[-1])


def expression(grammar: str, name: str) -> str:
    """Return the regular expression for a rule of the grammar, over the names of frames, each followed by a blank."""
    joined = re.sub(r"\n +", " ", re.sub("#.*", "", grammar))
    rules = {left.strip(): right for left, right in (line.split("=") for line in joined.strip().splitlines())}

    signs = {"(": "(?:", ")": ")", "[": "(?:", "]": ")?", "|": "|", "*": "*", "turn_end": r"(?:turn_end\{\w+\} )"}
    parts = [
        signs.get(part) or (expression(grammar, part) if part in rules else f"(?:{re.escape(part)} )")
        for part in re.findall(r"[a-z_]+(?:{[a-z]+})?|[()\[\]|*]", rules[name])
    ]
    return f"(?:{''.join(parts)})"


def hold(text: str, start: Callable[..., Zot]) -> None:
    """Hold a conversation: `harness.play`, and besides

    ``$ [NAME=VALUE] zot rpc FLAGS`` how zot is started; ``< ...`` any number of frames; ``signal NAME``; ``exit CODE``.
    Without the latter, what follows must be a good end without another frame.
    """
    lines = text.strip().splitlines()
    words = shlex.split(lines.pop(0).removeprefix("$")) if lines[0].startswith("$") else ["zot", "rpc"]
    command = words.index("zot")
    assert words[command + 1] == "rpc"
    flags = (*words[command + 2 :], "--frozen-time", "2026-01-31T12:00:00Z")
    process = start(*flags, env=dict(word.split("=") for word in words[:command]))
    said: list[str] = []
    for line in lines:
        match line.split():
            case ["<", "..."]:
                said.append('<* {"type":...,...}')
            case [">" | "<", *_]:
                said.append(line)
            case ["signal", name]:
                _say(process, said)
                process.process.send_signal(signal.Signals[f"SIG{name}"])
            case ["exit", code]:
                _say(process, said)
                assert process.rest() == []
                assert process.wait() == int(code)
                return
            case _:
                pytest.fail(f"what is {line!r}?")
    _say(process, said)
    assert process.finish() == []


def _say(process: Zot, said: list[str]) -> None:
    if said:
        play(process, "\n".join(said))
        said.clear()
