"""The daemon's overview of all sessions: details, images, files, extensions, audit lines."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path

from daemons import running
from extensions.stage import Extension
from zot.serve.daemon.audit import AuditEntry
from zot.serve.daemon.audit import _chained as chained


def png(color: int) -> bytes:
    """Return an image of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes([0, color])))
        + chunk(b"IEND", b"")
    )


async def test_a_detailed_list_has_branch_cost_last_words_and_what_waits(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/topic\n")
    async with running(tmp_path, policy=("bash=ask", "*=allow")) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s", cwd=str(tmp_path))
        (plain,) = (await caller.get("session/list"))["sessions"]
        assert not {"branch", "costUsd", "lastWords", "pendingApproval"} & plain.keys()
        (empty,) = (await caller.get("session/list", details=True))["sessions"]
        assert (empty["branch"], empty["costUsd"], empty["lastWords"]) == ("topic", 0.0, "")
        await caller.get("session/prompt", sessionId="s", prompt='!script say "First\\nline and more"')
        (told,) = (await caller.get("session/list", details=True))["sessions"]
        assert told["lastWords"] == "First line and more"
        running_turn = caller.call("session/prompt", sessionId="s", prompt="!bash echo hi")
        asked = await caller.until(type="approval_request")
        (waits,) = (await caller.get("session/list", details=True))["sessions"]
        assert waits["pendingApproval"]["requestId"] == asked["requestId"]
        assert waits["lastWords"] == "Running it."
        await caller.get("session/approve", sessionId="s", requestId=asked["requestId"], decision="reject")
        await caller.answer(running_turn)
        await caller.get("session/clear", sessionId="s")
        (cleared,) = (await caller.get("session/list", details=True))["sessions"]
        assert (cleared["lastWords"], "pendingApproval" in cleared) == ("", False)


async def test_an_image_is_found_by_its_message_and_by_its_tool_call(tmp_path: Path) -> None:
    first, second, read = png(1), png(2), png(3)
    (tmp_path / "read.png").write_bytes(read)
    async with running(tmp_path) as daemon:
        caller = await daemon.caller(protocolVersion=1, features=["events"])
        await caller.get("session/new", agentAlias="default", sessionId="s", cwd=str(tmp_path))
        attachments = [{"dataB64": base64.b64encode(data).decode()} for data in (first, second)]
        await caller.get("session/prompt", sessionId="s", prompt="!read read.png", attachments=attachments)
        events = [event for _, event in await daemon.events("s")]
        prompt = next(event for event in events if event["type"] == "user_message")
        result = next(event for event in events if event["type"] == "tool_result")
        for index, data in enumerate((first, second)):
            found = await caller.get("session/image", sessionId="s", time=prompt["time"], index=index)
            assert (found["mimeType"], base64.b64decode(found["dataB64"])) == ("image/png", data)
        found = await caller.get("session/image", sessionId="s", callId=result["id"])
        assert base64.b64decode(found["dataB64"]) == read
        for wrong in ({"time": prompt["time"], "index": 2}, {"callId": "x"}, {"time": "2026"}, {}):
            assert (await caller.error("session/image", sessionId="s", **wrong))[0] == -32602
        assert (await caller.error("session/image", sessionId="none", callId="x"))[0] == -32000


async def test_files_are_found_by_letters_below_the_directory_only(tmp_path: Path) -> None:
    place = tmp_path / "place"
    (place / "src").mkdir(parents=True)
    (place / ".git").mkdir()
    for name in ("src/main.py", "src/mine.txt", "README.md", ".git/main.py", "bad\nname"):
        (place / name).write_text("")
    (tmp_path / "main.outside").write_text("")
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s", cwd=str(place))
        assert (await caller.get("session/files", sessionId="s", query="main"))["files"] == ["src/main.py"]
        assert (await caller.get("session/files", sessionId="s", query="sm"))["files"] == [
            "src/main.py",
            "src/mine.txt",
        ]
        assert (await caller.get("session/files", sessionId="s", limit=1))["files"] == ["README.md"]
        assert (await caller.get("session/files", sessionId="s", query="../main"))["files"] == []
        assert (await caller.error("session/files", sessionId="none"))[0] == -32000


async def test_extensions_are_listed_with_their_states(tmp_path: Path) -> None:
    ready = 'hello("commands")\nsay("register_command", name="tidy")\nsay("ready")\nfor frame in frames(): pass\n'
    good = Extension(tmp_path, "good", ready)
    bad = Extension(tmp_path, "bad", "raise SystemExit('cannot')\n")
    async with running(tmp_path, ext=(str(good.directory), str(bad.directory))) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="s")
        await caller.get("session/commands", sessionId="s")
        while True:
            found = {one["name"]: one for one in (await caller.get("session/extensions", sessionId="s"))["extensions"]}
            if found["bad"]["state"] == "failed":
                break
        assert (found["good"]["state"], found["good"]["commands"], found["good"]["problem"]) == (
            "running",
            ["tidy"],
            "",
        )
        assert found["bad"]["problem"]


async def test_the_newest_audit_lines_come_first_and_a_damaged_one_is_omitted(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        caller = await daemon.caller()
        for title in ("a", "b"):
            await caller.get("session/new", agentAlias="default", sessionId=title)
        lines = (await caller.get("audit/recent", limit=2))["lines"]
        assert [(one["method"], one["session"]) for one in lines] == [("session/new", "b"), ("session/new", "a")]
        assert not {"hash", "prev"} & lines[0].keys()
        path = tmp_path / "audit.log"
        line, _ = chained(AuditEntry(99, "2026", "forged"))
        path.write_bytes(path.read_bytes() + line.replace(b"forged", b"FORGED") + b"nonsense\n")
        assert (await caller.get("audit/recent", limit=1))["lines"][0] == json.loads(json.dumps(lines[0]))
        assert len((await caller.get("audit/recent"))["lines"]) == 3


async def test_a_session_that_waits_is_listed_beyond_the_limit(tmp_path: Path) -> None:
    async with running(tmp_path, policy=("bash=ask",)) as daemon:
        caller = await daemon.caller()
        await caller.get("session/new", agentAlias="default", sessionId="waits")
        run = caller.call("session/prompt", sessionId="waits", prompt="!bash true")
        await caller.until(type="approval_request")
        for name in ("old", "new"):
            await caller.get("session/new", agentAlias="default", sessionId=name)
            await caller.get("session/prompt", sessionId=name, prompt="!echo hi")
        listed = (await caller.get("session/list", limit=1))["sessions"]
        assert [one["sessionId"] for one in listed] == ["new"]
        listed = (await caller.get("session/list", limit=1, active=True, details=True))["sessions"]
        assert [(one["sessionId"], one["state"]) for one in listed] == [("new", "idle"), ("waits", "waiting_approval")]
        await caller.get("session/cancel", sessionId="waits")
        await caller.answer(run)
