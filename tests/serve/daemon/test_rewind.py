"""`session/rewind` and `session/undo_compact`: back to an earlier conversation, with its files, for every client."""

from __future__ import annotations

from pathlib import Path

from daemons import Caller, running


async def opened(caller: Caller, work: Path) -> None:
    """Open the session `s`, in which a file was written and then edited."""
    work.mkdir()
    await caller.get("session/new", agentAlias="default", sessionId="s", cwd=str(work))
    for prompt in ("!write a.txt one", "!edit a.txt one two"):
        await caller.get("session/prompt", sessionId="s", prompt=prompt)


async def test_a_rewind_restores_files_after_a_preview_and_can_be_undone(tmp_path: Path) -> None:
    file = tmp_path / "work" / "a.txt"
    async with running(tmp_path / "home") as daemon:
        caller = await daemon.caller()
        await opened(caller, file.parent)
        preview = await caller.get("session/rewind", sessionId="s", messages=4, preview=True)
        assert (preview["messageCount"], preview["files"]) == (4, [{"path": "a.txt", "change": "changed"}])
        assert file.read_text() == "two"
        assert await caller.get("session/rewind", sessionId="s", messages=4) == preview
        assert file.read_text() == "one"
        assert (await caller.get("session/state", sessionId="s"))["messageCount"] == 4
        undone = await caller.get("session/rewind", sessionId="s", at=preview["undo"])
        assert (undone["messageCount"], file.read_text()) == (8, "two")
        await caller.get("session/rewind", sessionId="s", messages=0, files=False)
        assert file.read_text() == "two"


async def test_a_rewind_that_cannot_be_done_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "work" / "a.txt"
    async with running(tmp_path / "home") as daemon:
        caller = await daemon.caller()
        await opened(caller, file.parent)
        file.write_text("mine")
        code, told = await caller.error("session/rewind", sessionId="s", messages=4)
        assert (code, "files cannot be restored, nothing was changed: a.txt" in told) == (-32602, True)
        assert (file.read_text(), (await caller.get("session/state", sessionId="s"))["messageCount"]) == ("mine", 8)
        assert (await caller.error("session/rewind", sessionId="s"))[0] == -32602
        assert (await caller.error("session/rewind", sessionId="s", at=9999))[0] == -32602
        assert (await caller.error("session/rewind", sessionId="none", messages=0))[0] == -32000
        running_turn = caller.call("session/prompt", sessionId="s", prompt="!stall")
        assert (await caller.error("session/rewind", sessionId="s", messages=0))[0] == -32002
        assert (await caller.error("session/undo_compact", sessionId="s"))[0] == -32002
        await caller.get("session/cancel", sessionId="s")
        await caller.answer(running_turn)


async def test_a_compaction_is_undone_once(tmp_path: Path) -> None:
    async with running(tmp_path / "home") as daemon:
        caller = await daemon.caller()
        await opened(caller, tmp_path / "work")
        before = await caller.get("session/messages", sessionId="s")
        await caller.get("session/compact", sessionId="s")
        assert await caller.get("session/undo_compact", sessionId="s") == {"sessionId": "s", "messageCount": 8}
        assert await caller.get("session/messages", sessionId="s") == before
        assert await caller.error("session/undo_compact", sessionId="s") == (-32602, "there is no compaction to undo")
