"""reference/extensions.md: its conversations happen, and it has every frame and field. So do the pages of the SDKs."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import zot.ext
from extensions.process import running
from harness import PATIENCE_S, environment
from optional import needs
from zot.ext.testing import Client
from zot.extensions.peer import (
    MAX_BYTES,
    MAX_COMMANDS,
    MAX_FAULTS,
    MAX_TOOLS,
    Decided,
    ExtensionDeadlines,
    ExtensionPeer,
    Greeted,
    OutgoingRequest,
    PeerEvent,
    ProtocolViolation,
)
from zot.wire import extension as wire

from .markdown import Block, blocks

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reference" / "extensions.md").read_text()
PYTHON = (ROOT / "docs" / "reference" / "extensions-python.md").read_text()
TYPESCRIPT = (ROOT / "docs" / "reference" / "extensions-typescript.md").read_text()
CONVERSATIONS = blocks(TEXT, "extension")


@pytest.mark.parametrize("block", CONVERSATIONS, ids=Block.id)
def test_zot_sends_the_frames_of_a_conversation_and_reports_no_fault(block: Block) -> None:
    said = [line.split(" ", 1) for line in block.text.strip().split("\n")]
    peer = ExtensionPeer(json.loads(said[0][1])["name"], ack_of(block), now=0.0)
    happenings: list[PeerEvent] = []
    for who, line in said:
        match who:
            case "<":
                happenings += peer.receive(line.encode() + b"\n", 0.0)
            case ">":
                assert told(peer, wire.decode_to_extension(line.encode()), happenings) == line.encode() + b"\n"
            case _:
                assert line == f"the call is blocked: {blocked(happenings)}"
    complaints = [happening for happening in happenings if isinstance(happening, ProtocolViolation)]
    assert len(complaints) == block.text.count("\n!")


def ack_of(block: Block) -> wire.HelloAck:
    [line] = [line[2:] for line in block.text.split("\n") if '"hello_ack"' in line]
    ack = wire.decode_to_extension(line.encode())
    assert isinstance(ack, wire.HelloAck)
    return ack


def blocked(happenings: list[PeerEvent]) -> str:
    decided = happenings[-1]
    assert isinstance(decided, Decided)
    assert decided.decision.block
    return decided.decision.reason


def told(peer: ExtensionPeer, frame: wire.AnyToExtension, happenings: list[PeerEvent]) -> bytes:
    """Make zot send a frame of this type, and return it."""
    match frame:
        case wire.HelloAck():
            [reply] = [happening.reply for happening in happenings if isinstance(happening, Greeted)]
            return reply
        case wire.CommandInvoked(name=name, args=args):
            return asked(peer.invoke_command(name, args, 0.0))
        case wire.ToolCall(name=tool, args=given):
            return asked(peer.call_tool(tool, given, 0.0))
        case wire.EventIntercept(event=event):
            about = {key: value for key, value in msgspec.structs.asdict(frame).items() if key not in ("id", "event")}
            return asked(peer.ask(event, 0.0, **about))
        case wire.Event():
            return peer.notify(frame)
        case wire.PanelKey(panel_id=panel_id, key=key, text=text):
            return peer.send_key(panel_id, key, text)
        case wire.PanelClose(panel_id=panel_id):
            return peer.close_panel(panel_id)
        case wire.Shutdown():
            return peer.shut_down(0.0)


def asked(question: object) -> bytes:
    assert isinstance(question, OutgoingRequest), question
    return question.data


def test_the_quick_start_is_a_program_that_prints_the_output_shown(tmp_path: Path) -> None:
    program, manifest, conversation = blocks(TEXT, "python")[0], blocks(TEXT, "json")[0], CONVERSATIONS[0]
    (tmp_path / "extension.json").write_text(manifest.text)
    (tmp_path / "hello.py").write_text(program.text)
    (tmp_path / "hello.py").chmod(0o755)
    with running(tmp_path) as extension:
        output = extension.process.stdout
        assert output is not None
        for line in conversation.text.strip().split("\n"):
            if line.startswith(">"):
                extension.write(line[2:].encode() + b"\n")
            else:
                written = b""
                while not written.endswith(b"\n"):
                    written += output.read(1) or pytest.fail("it ended early")
                assert json.loads(written) == json.loads(line[2:])
        assert extension.exit_code() == 0


SECTIONS = {
    "Frames from an extension": get_args(wire.AnyFromExtension),
    "Frames to an extension": get_args(wire.AnyToExtension),
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_frame_is_described_with_its_fields(heading: str) -> None:
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = {
        name: {*re.findall("`(.*?)`", fields)}
        for name, fields in re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)
    }
    about = {*wire.EventIntercept.__struct_fields__, *wire.Event.__struct_fields__} - {"id", "event"}
    expected = {
        wire.name_of(kind): {*kind.__struct_fields__} - (about if kind in (wire.Event, wire.EventIntercept) else set())
        for kind in SECTIONS[heading]
    }
    assert rows == expected


def test_every_event_is_described_with_its_fields() -> None:
    section = TEXT.partition("\n## Events\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|", section, re.MULTILINE)
    assert tuple(name for name, _ in rows) == (
        "session_start",
        "turn_start",
        "tool_call",
        "assistant_message",
        "turn_end",
    )
    assert {name for name, _ in rows} == {*wire.EVENTS}
    fields = {field for _, cell in rows for field in re.findall("`(.*?)`", cell)}
    assert fields == {*wire.Event.__struct_fields__} - {"event"}


def test_every_constant_of_the_protocol_is_described() -> None:
    words = {*get_args(wire.Action), *get_args(wire.Key), *wire.LEVELS, *wire.ContentBlock.__struct_fields__}
    assert [word for word in sorted(words) if f"`{word}`" not in TEXT] == []


def test_deadlines_and_limits_are_as_documented() -> None:
    assert ExtensionDeadlines() == ExtensionDeadlines(30, 3, 0.25, 60, 5, 30, 2, 1)
    section = TEXT.partition("\n## Life cycle\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) s \|", section, re.MULTILINE) == ["30", "3", "60", "30", "5", "2"]
    assert (wire.MAX_LINE_BYTES, wire.MAX_REGISTRATION_BYTES, MAX_BYTES) == (4 << 20, 256 << 10, 1 << 20)
    assert (MAX_COMMANDS, MAX_TOOLS, MAX_FAULTS) == (256, 256, 100)


def members(kind: type[Any]) -> list[str]:
    made = kind("x") if kind is zot.ext.Extension else zot.ext.Extension("x").panel("p")(list)
    return sorted(name for name in {*dir(kind), *vars(made)} if not name.startswith("_"))


@pytest.mark.parametrize("name", zot.ext.__all__)
def test_every_public_name_of_the_python_sdk_is_described(name: str) -> None:
    assert re.search(rf"zot\.ext\.{name}\b", PYTHON)


@pytest.mark.parametrize(
    ("kind", "heading"), [(zot.ext.Extension, "Extension"), (zot.ext.Panel, "Panels")], ids=["Extension", "Panel"]
)
def test_every_member_of_the_python_sdk_is_described(kind: type[Any], heading: str) -> None:
    section = PYTHON.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = " ".join(line.split(" | ")[0] for line in section.split("\n") if line.startswith("|"))
    assert [name for name in members(kind) if not re.search(rf"`@?{name}\b", rows)] == []


def test_every_member_of_the_testing_client_is_described() -> None:
    section = PYTHON.partition("\n## Testing\n")[2]
    client = Client(zot.ext.Extension("x"))
    names = sorted(name for name in {*dir(Client), *vars(client)} if not name.startswith("_"))
    assert [name for name in names if not re.search(rf"`{name}\b", section)] == []


def test_every_export_and_member_of_the_typescript_sdk_is_described() -> None:
    for file in ("zot-ext.d.ts", "testing.d.ts"):
        declared = (ROOT / "sdk" / "typescript" / file).read_text()
        exported = re.findall(r"^export (?:class|function) (\w+)", declared, re.MULTILINE)
        inside = re.findall(r"^  (?:readonly )?(\w+)(?:<[^>]*>)?\??[(:]", declared, re.MULTILINE)
        internal = {"constructor", "framesOf", "connect", "finish", "fields", "block", "handler", "name", "version",
                    "description", "schema"}  # fmt: skip
        missing = [name for name in {*exported, *inside} - internal if not re.search(rf"\b{name}\b", TYPESCRIPT)]
        assert missing == []


@needs("node")
def test_the_typescript_program_prints_the_output_shown_below_it(tmp_path: Path) -> None:
    [program], [output] = blocks(TYPESCRIPT, "js"), blocks(TYPESCRIPT, "text")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "zot-ext").symlink_to(ROOT / "sdk" / "typescript")
    (tmp_path / "program.mjs").write_text(program.text)
    done = subprocess.run(
        ["node", "program.mjs"], cwd=tmp_path, env=environment({}), capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert (done.stdout.decode(), done.stderr.decode(), done.returncode) == (output.text, "", 0)
