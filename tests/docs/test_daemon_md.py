"""reference/daemon.md describes every method, update and error; its conversations are valid."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import FieldInfo

from harness import PATIENCE_S, environment
from zot.events import Resolution
from zot.serve.daemon.access import MAX_ID
from zot.serve.daemon.backlog import MAX_UNREAD_BYTES
from zot.serve.daemon.client_connection import _MAX_UNANSWERED, _MAX_UNANSWERED_BYTES
from zot.serve.daemon.daemon import MAX_CLIENTS
from zot.session.queue import MAX_QUEUE
from zot.wire import daemon, host, jsonrpc, updates
from zot.wire.daemon import METHODS, OPERATOR, Method
from zot.wire.daemon_types import Changed, LogEvent
from zot.wire.lines import MAX_LINE_BYTES

from .markdown import Block, blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "daemon.md").read_text()
CODES = {name: code for name, code in vars(jsonrpc).items() if name.isupper() and isinstance(code, int)}
UPDATES = {str(kind.__struct_config__.tag): kind for kind in updates.Update.__subclasses__()}


def needless(field: FieldInfo) -> bool:
    """True of a parameter that need not be given."""
    return not field.required


def absent(field: FieldInfo) -> bool:
    """True of an optional part of an answer; other fields with a default are always written."""
    return field.default is msgspec.UNSET


def row(method: Method) -> str:
    """Return the line of the table of methods that the page must have."""
    errors = f" Errors: {', '.join(f'`{code}`' for code in method.errors)}." if method.errors else ""
    local = " Over the local socket only." if method.local else ""
    names = fields(method.params, needless), fields(method.result, absent)
    return f"| `{method.name}` | {names[0]} | {names[1]} | {method.summary}{local}{errors} |"


def fields(kind: type[msgspec.Struct], may_be_missing: Callable[[FieldInfo], bool]) -> str:
    """Return the names of the fields, with a question mark after optional ones."""
    if issubclass(kind, host.Request):
        return "as in [host](host.md), `ageMs?`, `ahead?`"
    found = msgspec.structs.fields(kind)
    return ", ".join(f"`{field.encode_name}{'?' if may_be_missing(field) else ''}`" for field in found)


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_method_is_described(method: Method) -> None:
    assert f"\n{row(method)}\n" in TEXT


@pytest.mark.parametrize("decision", get_args(Resolution))
def test_every_decision_is_described(decision: str) -> None:
    assert f"`{decision}`" in TEXT


def test_the_limits_are_those_of_the_source() -> None:
    section = TEXT.partition("\n## Limits\n")[2]
    said = (
        f"| {MAX_LINE_BYTES >> 20} MiB, `--max-line-bytes`", f"| {MAX_QUEUE} |",
        f"| {_MAX_UNANSWERED}, or {_MAX_UNANSWERED_BYTES >> 20} MiB |", f"| {MAX_UNREAD_BYTES >> 20} MiB |",
        f"| {MAX_CLIENTS}, or fewer", f"| {MAX_ID} characters |",
    )  # fmt: skip
    assert [words for words in said if words not in section] == []


def test_the_quick_start_works_as_written(tmp_path: Path) -> None:
    program = tmp_path / "zot"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m zot "$@"\n')
    program.chmod(0o755)
    env = environment({"ZOT_HOME": str(tmp_path / "home"), "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    [start] = blocks(TEXT, "sh")
    done = subprocess.run(
        ["sh", "-ec", f"{start.text}wait"], env=env, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=True
    )
    assert b'"text":"Hello"' in done.stdout
    assert b'"content":"Hello"' in done.stdout


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_every_update_is_described_with_its_fields(name: str) -> None:
    section = TEXT.partition("\n## Updates\n")[2].partition("\n## ")[0]
    [names] = re.findall(rf"^\| `{name}` \|([^|]*)\|", section, re.MULTILINE)
    assert re.findall("`(.*?)`", names) == [*UPDATES[name].__struct_encode_fields__]


@pytest.mark.parametrize("feature", daemon.FEATURES)
def test_every_feature_is_described(feature: str) -> None:
    assert f"`{feature}`" in TEXT


@pytest.mark.parametrize("block", blocks(TEXT, "daemon"), ids=Block.id)
def test_every_message_of_a_conversation_is_valid(block: Block) -> None:
    asked: dict[str, Method] = {}
    for line in block.text.strip().split("\n"):
        sign, _, text = line.partition(" ")
        if sign == ">":
            method, params = call(text)
            daemon.read_params(method, params)
            asked[str(json.loads(text).get("id"))] = method
        elif sign == "<" and text != "...":
            check_answer(text, asked)


def call(text: str) -> tuple[Method, msgspec.Raw]:
    said = jsonrpc.decode(text.encode())
    assert isinstance(said, jsonrpc.RpcRequest)
    return daemon.find(said.method, initialized=True, grant=OPERATOR), said.params


def check_answer(text: str, asked: dict[str, Method]) -> None:
    frame = json.loads(re.sub(r"([:\[])\.\.\.", r"\1null", text))
    match frame:
        case {"method": "session/update", "params": {"type": str(name), "sessionId": str()} as update}:
            rest = {key: value for key, value in update.items() if key not in ("type", "sessionId", "seq")}
            check(UPDATES[name], rest, text)
        case {"method": "logs/event", "params": given}:
            check(LogEvent, given, text)
        case {"method": "sessions/changed", "params": given}:
            check(Changed, given, text)
        case {"result": result, "id": frame_id}:
            check(asked[str(frame_id)].result, result, text)
        case {"error": {"code": code, "message": _}}:
            assert code in CODES.values()
        case _:
            pytest.fail(f"nobody says {text}")


def check(kind: type[msgspec.Struct], given: dict[str, Any], text: str) -> None:
    names = {field.encode_name: field.required for field in msgspec.structs.fields(kind)}
    spelled = {name.lower(): name for name in names}
    keys = {spelled.get(key.replace("_", "").lower(), key) for key in given}
    assert keys <= names.keys()
    assert {name for name, required in names.items() if required} <= keys
    if "..." not in text and "session_id" not in text and "protocol_version" not in text:
        tag = kind.__struct_config__.tag
        msgspec.convert(given if tag is None else {"type": tag, **given}, kind)
