"""The commands of the terminal."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from textual.events import Paste

from ui.terminal.stage import Stage, stage


async def test_commands_about_the_session(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(110, 60)) as person:
        await person.sees("ready")
        first = (await person.app.live.conversation.state()).session
        await person.says("!echo It is red.")
        await person.sees("  It is red.")
        await person.idle()
        await person.says("/cost ")
        await person.sees("input      100")
        await person.pilot.press(*"/session")
        await person.sees("/sessions   switch to another session")
        await person.pilot.press("enter")
        await person.sees(f"session    {first}")
        await person.says("/session fork")
        await person.sees("the original is unchanged")
        await person.sees("ready")
        forked = (await person.app.live.conversation.state()).session
        assert forked != first
        assert "It is red." in person.screen
        await person.says("/session tree")
        await person.sees(f"- {first}  !echo It is red. (2 messages)")
        await person.sees(f"  * {forked}")
        await person.says(f"/session export {tmp_path}/kept.jsonl")
        await person.sees("exported the session to")
        await person.says(f"/session import {tmp_path}/kept.jsonl")
        await person.until(lambda: _session(person) not in (first, forked, ""))
        assert "It is red." in person.screen
        await person.says(f"/sessions {first}")
        await person.until(lambda: _session(person) == first)
        await person.says("/clear ")
        await person.sees("the conversation was cleared")
        assert "It is red." not in person.screen
        assert await person.app.live.conversation.messages() == []
        await person.says("/sessions ")
        await person.sees("Switch to which session?")
        await person.pilot.press(*"nothing of that name")
        await person.sees("/nothing of that name")
        await person.pilot.press("escape")
        await person.misses("Switch to which session?")


async def test_a_rewind_shows_the_files_that_would_change_and_asks_first(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(110, 60)) as person:
        await person.sees("ready")
        file = Path((await person.app.live.conversation.state()).cwd, "a.txt")
        for prompt in ("!write a.txt one", "!edit a.txt one two"):
            await person.says(prompt)
            await person.idle()
        await person.says("/rewind 4")
        await person.sees("changed  a.txt")
        await person.sees("To undo it later: zot sessions rewind")
        await person.sees("Esc cancels")
        await person.pilot.press("escape")
        await person.misses("To undo it later")
        assert file.read_text() == "two"
        await person.says("/rewind ")
        await person.sees("Go back to before")
        await person.sees("Enter selects")
        await person.pilot.press("enter")
        await person.sees("Go back to the first 4 messages?")
        await person.sees("Esc cancels")
        await person.pilot.press("y")
        await person.misses("!edit a.txt one two")
        assert file.read_text() == "one"
        assert len(await person.app.live.conversation.messages()) == 4
        await person.says("/undo-compact ")
        await person.sees("there is no compaction to undo")


async def test_no_session_is_made_that_cannot_be_opened_during_a_run(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!echo one")
        await person.idle()
        await person.says(f"/session export {tmp_path}/kept.jsonl")
        await person.sees("exported the session to")
        await person.says("!stall-mid")
        await person.sees("answering")
        for number, command in enumerate(("/session fork", f"/session import {tmp_path}/kept.jsonl"), 1):
            await person.says(command)
            await person.until(lambda n=number: person.screen.count("abort it first") == n, command)  # type: ignore[misc]  # a default argument
        assert len(await person.home.sessions()) == 1


async def test_commands_typed_before_the_session_is_open_wait_for_it(tmp_path: Path) -> None:
    may_open = asyncio.Event()
    async with stage(tmp_path, may_open=may_open) as person:
        await person.sees("starting")
        await person.says("/skills")
        await person.says("/session ")
        await person.says("!echo said at last")
        await person.sees("1. !echo said at last")
        assert "[skills]" not in person.screen
        may_open.set()
        await person.sees("[skills]")
        await person.sees("model      lab/lab-1")
        await person.sees("   said at last")
        await person.idle()
        assert "not open yet" not in person.screen


async def test_leaving_needs_no_session(tmp_path: Path) -> None:
    async with stage(tmp_path, may_open=asyncio.Event()) as person:
        await person.sees("starting")
        await person.until(lambda: person.app.composer.queue.is_attached, "that all of the screen is there")
        await person.says("/exit ")
        await person.until(lambda: person.app.return_value == 0)


async def test_a_second_export_gets_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("!echo It is red.")
        await person.idle()
        session = (await person.app.live.conversation.state()).session
        for suffix in (".html", ".jsonl"):
            for name in (session, f"{session}-2", f"{session}-3"):
                await person.says("/export " if suffix == ".html" else "/session export")
                await person.until((tmp_path / f"{name}{suffix}").exists)


async def test_a_failed_command_is_a_note_and_does_not_end_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    async with stage(tmp_path, size=(110, 60), cwd=None) as person:
        await person.sees("ready")
        await person.says("!echo It is red.")
        await person.idle()
        for number, count in enumerate(("\u00b2", "9" * 5000), 1):
            await person.says(f"/session fork {count}")
            await _sees_so_often(person, "takes a number of messages", number)
        place.rmdir()
        commands = ("/export ", "/session export", "/export x.html", "/skills ", "/reload-ext ")
        for number, command in enumerate(commands, 1):
            await person.says(command)
            await _sees_so_often(person, "the directory that zot was started in is gone", number)
        monkeypatch.setattr(person.home, "skills", _refused)
        await person.says("/skills ")
        await person.sees("/skills: /of/others: Permission denied")
        await person.says(f"/export {tmp_path}/page.html")
        await person.sees("exported the conversation to")


async def test_a_side_answer_is_shown_while_it_streams_and_aborted_with_escape(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.says("/btw !slow 6000 0.1")
        await person.sees("answering a side question")
        await person.says("!echo meanwhile")
        await person.sees("  meanwhile")
        await person.says("/cost ")
        await person.sees("output ")
        await person.until(lambda: not person.app.live.story.doing and not person.app.live.feed.waits)
        assert "answering a side question" in person.screen
        await person.pilot.press("escape")
        await person.sees("the side question was aborted")
        await person.sees("ready")


async def test_commands_about_the_model_and_the_messages(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(110, 60)) as person:
        await person.sees("ready")
        await _talked(person)
        await person.says("/btw\n!echo by the way")
        await person.sees("[btw]")
        await person.sees("by the way")
        assert len(await person.app.live.conversation.messages()) == 6
        await person.says("/model ")
        await person.sees("Model (now lab-1)")
        await person.pilot.press("enter")
        await person.sees("the next model call uses lab/lab-1")
        await person.says("/model nonsense")
        await person.sees("no model is named 'nonsense'")
        await person.says("/jump ")
        await person.sees("Go to")
        await person.pilot.press("down", "enter")
        await person.misses("Go to")
        await person.says("/skills ")
        await person.sees("write-zot-extension")
        await person.says("/lock ")
        await person.sees("confined to the directory")
        await person.sees("locked")
        await person.says("/unlock ")
        await person.sees("the tools are not confined")
        await person.misses("· locked")
        await person.says("/approvals ")
        await person.sees("no call is always allowed")
        await person.says("/nonsense ")
        await person.sees("unknown command /nonsense")
        await person.says("/modle ")
        await person.sees("did you mean /model?")
        await person.says("/compact ")
        await person.sees("the conversation was summarised")
        await person.idle()
        await person.says(f"/export {tmp_path}/page.html")
        await person.sees("exported the conversation to")
        assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
        await person.says("/help ")
        await person.sees("Keys")
        assert "aborts the run" in person.screen
        await person.says("/exit ")
        await person.until(lambda: person.app.return_value == 0)


async def _refused() -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/of/others")


async def _sees_so_often(person: Stage, text: str, count: int) -> None:
    await person.until(lambda: person.screen.count(text) == count, f"{text!r} {count} times")


def _session(person: Stage) -> str:
    now = person.app.status._snapshot
    return "" if now is None else now.session


async def _talked(person: Stage) -> None:
    for word in ("one", "two", "three"):
        await person.says(f"!echo {word}")
        await person.sees(f"\n   {word}")
        await person.idle()


async def test_keys_are_stored_only_if_the_service_accepts_them_and_are_not_shown(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(110, 40)) as person:
        await person.sees("ready")
        await person.says("/login nonsense")
        await person.sees("unknown provider; use /login and one of these: anthropic, ")
        await person.says("/logout nonsense")
        await person.sees("unknown provider; use one of these: anthropic, ")
        await person.says("/login ")
        await person.sees("Store the key of")
        await person.pilot.press(*"deep", "enter")
        await person.sees("Key for deepseek (it is not shown)")
        await person.pilot.press(*"sk-secret")
        assert "sk-secret" not in person.screen
        await person.pilot.press("escape")
        await person.misses("Key for deepseek")
        await person.says("/logout deepseek")
        await person.sees("nothing is stored for deepseek")


async def test_typed_text_is_completed_remembered_and_folded(tmp_path: Path) -> None:
    (tmp_path / "some_file.py").touch()
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.pilot.press(*"/co")
        await person.sees("/compact   summarise")
        await person.pilot.press("down", "tab")
        assert person.app.editor.text == "/cost "
        await person.misses("/compact   summarise")
        await person.pilot.press("enter")
        await person.sees("cost       $0.0000")
        await person.pilot.press(*"see @sofi")
        await person.sees("@some_file.py")
        await person.pilot.press("enter")
        assert person.app.editor.text == "see @some_file.py "
        await person.pilot.press("ctrl+j", *"next", "up", "up")
        assert person.app.editor.text == "/cost "
        await person.pilot.press("down")
        assert person.app.editor.text == "see @some_file.py \nnext"
        await person.pilot.press("ctrl+c")
        person.app.editor.post_message(_pasted("\n".join(map(str, range(40)))))
        await person.sees("[pasted #1: 40 lines]")
        await person.pilot.press("backspace")
        assert person.app.editor.text == ""
        person.app.editor.post_message(_pasted("\n".join(map(str, range(40)))))
        await person.sees("[pasted #2: 40 lines]")
        await person.pilot.press("enter")
        said = "\n".join(map(str, range(40)))
        await person.until(lambda: any(entry.text == said for entry in person.app.transcript.entries))


async def test_files_with_blanks_and_files_in_other_directories_are_completed(tmp_path: Path) -> None:
    (tmp_path / "my picture.png").write_bytes(b"png")
    (tmp_path / "a place").mkdir()
    (tmp_path / "a place" / "other.txt").touch()
    async with stage(tmp_path) as person:
        await person.sees("ready")
        editor = person.app.editor
        await person.pilot.press(*"@mypi")
        await person.sees('@"my picture.png"')
        await person.pilot.press("tab")
        assert editor.text == '@"my picture.png" '
        editor.text = ""
        await person.pilot.press(*'!echo @"my pi')
        await person.sees('@"my picture.png"')
        await person.pilot.press("tab", "enter")
        await person.sees("[image/png, 3 bytes]")
        await person.idle()
        editor.insert(f"@{tmp_path}/a")
        await person.until(lambda: editor.offers)
        await person.pilot.press("tab")
        assert editor.text == f'@"{tmp_path}/a place/'
        await person.until(lambda: editor.offers)
        await person.pilot.press("tab")
        assert editor.text == f'@"{tmp_path}/a place/other.txt" '
        editor.text = ""
        editor.insert("@/no/such/place")
        await person.pilot.press("x")
        assert not editor.offers


async def test_a_link_to_itself_is_offered_like_any_file(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.pilot.press(*"see @./l")
        await person.sees("@./loop")
        await person.pilot.press("tab")
        assert person.app.editor.text == "see @./loop "


def _pasted(text: str) -> Paste:
    return Paste(text)
