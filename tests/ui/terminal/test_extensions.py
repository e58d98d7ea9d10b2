"""Extensions in a terminal: their commands, panels and notices, their trust and reload."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.events import Key, Paste

from extensions.stage import Extension
from extensions.test_manager import interceptor
from ui.terminal.stage import Stage, stage
from zot.events import PanelClosed, PanelOpened
from zot.ui.terminal.panel_views import PanelView
from zot.ui.terminal.question_views import QuestionView

#: Answers each command with the action that it is named after, and writes down its keys.
PLAYER = """
hello("commands", "panels")
for name in ("prompt", "insert", "display", "lines", "open", "open2", "long", "long2", "noop", "fail", "slow", "notes",
             "later"):
    say("register_command", name=name, description="does " + name)
say("ready")
at = 0
def rows(at):
    return [("> " if number == at else "  ") + "row %d." % number for number in range(20)]
def render(panel, key):
    say("panel_render", panel_id=panel, title="Keys", lines=["pressed " + key], footer="x closes")
for frame in frames():
    answer_of = {
        "prompt": {"action": "prompt", "prompt": "!echo asked by an extension"},
        "insert": {"action": "insert", "insert": "inserted text"},
        "display": {"action": "display", "display": "# A note\\n\\n- shown"},
        "lines": {"action": "display", "display": "first: 1\\nsecond: 2"},
        "open": {"action": "open_panel", "open_panel": {"id": "one", "title": "First [red]", "lines": ["[b]a", "b"],
                                                         "footer": "keys go here"}},
        "open2": {"action": "open_panel", "open_panel": {"id": "two", "title": "Second\\npart", "lines": ["c"]}},
        "long": {"action": "open_panel", "open_panel": {"id": "long", "title": "Long", "lines": rows(0)}},
        "long2": {"action": "open_panel", "open_panel": {"id": "long2", "title": "Other", "lines": rows(0)}},
        "noop": {"action": "noop"},
        "notes": {"action": "noop"},
        "fail": {"action": "noop", "error": "it did not work"},
        "slow": {"action": "noop"},
    }
    answer_of["later"] = answer_of["open"]
    if frame["type"] == "command_invoked":
        if frame["name"] == "notes":
            for level in ("info", "success", "warn", "error"):
                say("notify", level=level, message="a notice of level " + level)
        if frame["name"] == "later":
            open("data/asked", "w").close()
        if frame["name"] in ("slow", "later"):
            while not os.path.exists("data/go"):
                time.sleep(0.02)
        say("command_response", id=frame["id"], **answer_of[frame["name"]])
    elif frame["type"] == "panel_key":
        if frame.get("text") == "x":
            say("panel_close", panel_id=frame["panel_id"])
        elif "long" in frame["panel_id"]:
            at = (at + {"down": 1, "up": -1}.get(frame["key"], 0)) % 20
            say("panel_render", panel_id=frame["panel_id"], title="Keys", lines=rows(at))
        else:
            render(frame["panel_id"], frame["key"] + " " + frame.get("text", ""))
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
        break
"""


def keys(extension: Extension) -> list[tuple[str, ...]]:
    """Return the panel frames that an extension received."""
    return [
        (frame["type"], frame["panel_id"], frame.get("key", ""), frame.get("text", ""))
        for frame in extension.heard()
        if frame["type"].startswith("panel_")
    ]


async def _known(person: Stage) -> None:
    await person.sees("ready")
    await person.until(lambda: bool(person.app.terminal.extension_commands), "commands of the extension")


async def test_every_action_of_a_command_and_every_level_of_a_notice_works(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),), size=(100, 60)) as person:
        await _known(person)
        await person.pilot.press(*"/ins")
        await person.sees("/insert   does insert")
        await person.pilot.press("enter")
        await person.until(lambda: person.app.editor.text == "inserted text")
        person.app.editor.text = ""
        await person.says("/display ")
        await person.sees("• shown")
        assert "[player]" in person.screen
        await person.says("/lines ")
        await person.sees("second: 2")
        assert [line for line in person.screen.split("\n") if ": " in line] == [" │ first: 1", " │ second: 2"]
        await person.says("/notes ")
        for level in ("info", "success", "warn", "error"):
            await person.sees(f"[player] a notice of level {level}")
        await person.says("/fail ")
        await person.sees("it did not work")
        await person.says("/noop ")
        await person.says("/slow ")
        await person.sees("waiting for player")
        (player.directory / "data" / "go").touch()
        await person.misses("waiting for player")
        await person.says("/prompt ")
        await person.sees("\n   asked by an extension")
        await person.idle()
        assert [len(one.content) for one in await person.app.live.conversation.messages()] == [1, 1]
        await person.says("/help ")
        await person.sees("/prompt does prompt (player)")


async def test_the_terminal_shows_which_extension_holds_the_text_and_why_it_was_blocked(tmp_path: Path) -> None:
    script = interceptor("assistant_message", then='answer(frame, block=True, reason="not for you")')
    guard = Extension(tmp_path, "guard", script)
    async with stage(tmp_path, ext=(str(guard.directory),)) as person:
        await person.sees("ready")
        await person.says("!slow 600 0.1")
        await person.sees("held by guard")
        await person.pilot.press("escape")
        await person.misses("held by guard")
        await person.says("!echo secret")
        await person.sees("[guard] not for you")
        await person.idle()


async def test_the_terminal_waits_for_a_slow_extension_until_it_has_started(tmp_path: Path) -> None:
    tardy = Extension(tmp_path, "tardy", "while not os.path.exists('data/go'):\n    time.sleep(0.02)\n" + PLAYER)
    async with stage(tmp_path, ext=(str(tardy.directory),)) as person:
        await person.sees("waiting for tardy")
        (tardy.directory / "data" / "go").touch()
        await person.sees("ready")
        assert "waiting for tardy" not in person.screen
        assert person.app.terminal.extension_commands


async def test_an_approval_does_not_restart_the_wait_for_a_started_extension(tmp_path: Path) -> None:
    tardy = Extension(tmp_path, "tardy", "while not os.path.exists('data/go'):\n    time.sleep(0.02)\n" + PLAYER)
    async with stage(tmp_path, ext=(str(tardy.directory),)) as person:
        await person.sees("waiting for tardy")
        await person.says("/model ")
        await person.sees("Model (now lab-1)")
        (tardy.directory / "data" / "go").touch()
        await person.misses("waiting for tardy")
        await person.sees("Model (now lab-1)")
        await person.pilot.press("escape")


async def test_an_extension_that_delays_a_side_answer_is_named(tmp_path: Path) -> None:
    hesitant = Extension(
        tmp_path,
        "hesitant",
        """
hello("events")
say("subscribe", intercept=["turn_start"])
say("ready")
for frame in frames():
    if frame["type"] == "event_intercept":
        while not os.path.exists("data/go"):
            time.sleep(0.02)
        answer(frame)
    elif frame["type"] == "shutdown":
        say("shutdown_ack")
""",
    )
    async with stage(tmp_path, ext=(str(hesitant.directory),)) as person:
        await person.sees("ready")
        await person.says("/btw !echo just so")
        await person.sees("waiting for hesitant")
        (hesitant.directory / "data" / "go").touch()
        await person.sees("│ just so")
        await person.idle()


async def _entered(person: Stage, title: str) -> None:
    """Wait until a panel has the keys."""
    await person.until(
        lambda: (
            isinstance(panel := person.app.focused, PanelView)
            and title in str(panel.border_title)
            and not panel.is_blind
        ),
        f"{title} entered",
    )


async def test_panels_take_keys_and_are_closed_by_either_side(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),), size=(100, 60)) as person:
        await _known(person)
        await person.says("/open ")
        await _entered(person, "First")
        await person.sees("keys go here")
        assert "First [red] (player)" in person.screen
        assert "[b]a" in person.screen
        names = [
            "up",
            "down",
            "left",
            "right",
            "enter",
            "tab",
            "pageup",
            "pagedown",
            "home",
            "end",
            "backspace",
            "delete",
        ]
        await person.pilot.press(*names, "q", "space")
        await person.sees("pressed rune")
        expected = [("panel_key", "one", name, "") for name in names]
        expected += [("panel_key", "one", "rune", "q"), ("panel_key", "one", "rune", " ")]
        await person.until(lambda: keys(player) == expected)
        await person.pilot.press("shift+tab")
        person.app.editor.focus()
        await person.says("/open2 ")
        await _entered(person, "Second")
        assert "pressed rune" in person.screen
        await person.pilot.press("x")
        await person.misses("Second")
        assert person.app.focused is person.app.editor
        await person.pilot.press("shift+tab")
        person.app.post_message(Key("ideographic_space", "\u3000"))
        await person.until(lambda: keys(player)[-1] == ("panel_key", "one", "rune", "\u3000"))
        await person.pilot.press("z")
        await person.until(lambda: keys(player)[-1] == ("panel_key", "one", "rune", "z"))
        await person.pilot.press("escape")
        await person.misses("pressed rune")
        await person.until(lambda: keys(player)[-1] == ("panel_close", "one", "", ""))
        assert person.app.focused is person.app.editor
        await person.says("/open ")
        await _entered(person, "First")
        await person.pilot.press("ctrl+c")
        await person.misses("keys go here")


async def test_a_paste_in_a_panel_is_typed_there_and_a_long_one_goes_to_the_editor(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),)) as person:
        await _known(person)
        await person.says("/open ")
        await _entered(person, "First")
        person.app.post_message(Paste("ä b\x07\ncd\n"))
        await person.pilot.press("enter")
        expected = [("panel_key", "one", "rune", character) for character in "ä b cd"]
        await person.until(lambda: keys(player) == [*expected, ("panel_key", "one", "enter", "")], "the keys")
        assert person.app.editor.text == ""
        person.app.post_message(Paste("long " * 300))
        await person.sees("[pasted #1: 1500 characters]")
        assert "the pasted text is in the editor" in person.screen
        assert isinstance(person.app.focused, PanelView)
        person.app.post_message(Paste("x"))
        await person.until(lambda: len(keys(player)) > 7, "one more key")
        assert keys(player)[7:] == [("panel_key", "one", "rune", "x")]


class Hands:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_panel_gets_keys_at_once_and_stray_typing_triggers_nothing(tmp_path: Path) -> None:
    player, clock = Extension(tmp_path, "player", PLAYER), Hands()
    async with stage(tmp_path, ext=(str(player.directory),), size=(100, 60), clock=clock) as person:
        await _known(person)
        person.app.editor.insert("/open ")
        # Before the panel is there, or just after.
        await person.pilot.press("enter", "down", "d", "o", "backspace", "end")
        await person.until(lambda: isinstance(person.app.focused, PanelView), "the panel has the keys")
        await person.pilot.press(*"stray", "enter", "delete", "space", "up")
        moves = [("panel_key", "one", name, "") for name in ("down", "end", "up")]
        await person.until(lambda: keys(player) == moves, "the keys that move")
        assert person.app.editor.text == ""
        clock.now += 0.25
        await person.pilot.press("a")  # The user continues to type, and looks elsewhere.
        clock.now += 0.25
        await person.pilot.press("b")
        clock.now += 0.4
        await person.pilot.press("q")
        await person.until(lambda: keys(player) == [*moves, ("panel_key", "one", "rune", "q")], "the key that is meant")
        assert person.app.editor.text == ""


async def test_a_late_panel_takes_no_key_from_a_prompt_being_written(tmp_path: Path) -> None:
    player, clock = Extension(tmp_path, "player", PLAYER), Hands()
    async with stage(tmp_path, ext=(str(player.directory),), size=(100, 60), clock=clock) as person:
        await _known(person)
        await person.says("/later ")
        await person.until((player.directory / "data" / "asked").exists, "the command has begun")
        await person.pilot.press(*"dear model")
        clock.now += 5
        (player.directory / "data" / "go").touch()
        await person.sees("First [red] (player): Shift+Tab enters it")
        await person.pilot.press(*", do")
        assert (person.app.editor.text, keys(player)) == ("dear model, do", [])
        await person.pilot.press("shift+tab", "q")
        await person.until(lambda: keys(player) == [("panel_key", "one", "rune", "q")], "the key")


async def test_an_unrequested_panel_takes_no_key(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),), size=(100, 60)) as person:
        await _known(person)
        # A panel that another client has asked for comes as an event only.
        await person.app.live.conversation.run_command("open2", "")
        await person.sees("Second part (player): Shift+Tab enters it")
        await person.pilot.press(*"cd")
        assert (person.app.editor.text, keys(player)) == ("cd", [])
        await person.pilot.press("shift+tab", "q")
        await person.until(lambda: keys(player) == [("panel_key", "two", "rune", "q")])


async def test_the_focus_returns_where_it_was_before_the_panel(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),), size=(100, 60)) as person:
        await _known(person)
        for command, title in (("/open ", "First"), ("/open2 ", "Second"), ("/long ", "Long")):
            await person.says(command)
            await _entered(person, title)
            person.app.editor.focus()
        await person.pilot.press("shift+tab")
        await _entered(person, "Long")
        await person.pilot.press("escape", *"hello")
        await person.misses("Long")
        assert (person.app.editor.text, person.app.focused) == ("hello", person.app.editor)
        # From panel to panel they were in another one before.
        await person.pilot.press("shift+tab", "shift+tab")
        await _entered(person, "First")
        await person.pilot.press("escape")
        await _entered(person, "Second")
        await person.pilot.press("escape")
        await person.misses("Second")
        assert person.app.focused is person.app.editor
        assert keys(player) == [("panel_close", one, "", "") for one in ("long", "one", "two")]


def _rows(person: Stage) -> list[int]:
    """Return the numbers of the rows that can be seen."""
    return [int(number) for number in re.findall(r" row (\d+)\.", person.screen)]


async def test_a_long_panel_scrolls_follows_its_cursor_and_grows_with_the_focus(
    tmp_path: Path,
) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),), size=(80, 24)) as person:
        await _known(person)
        await person.app.live.conversation.run_command("long", "")
        await person.sees("> row 0.")
        assert "row 19." not in person.screen
        await person.pilot.press("shift+tab", "pagedown", "pagedown")
        await person.sees("row 19.")
        assert keys(player) == []
        await person.pilot.press("pageup", "pageup", "up")
        await person.sees("> row 19.")
        await person.pilot.press("down")
        await person.sees("> row 0.")
        await person.pilot.press(*["down"] * 12)
        await person.sees("> row 12.")
        await person.app.live.conversation.run_command("long2", "")
        await person.until(lambda: _rows(person) == [*range(4, 13), 0])
        assert "> row 12." in person.screen
        person.app.editor.focus()
        await person.pilot.press("shift+tab")
        await person.until(lambda: _rows(person)[1:] == list(range(9)))
        assert "Other (player) ─" in person.screen
        assert "Keys (player): Shift+Tab enters it" in person.screen


async def test_panels_end_with_their_session_when_it_is_reopened(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),)) as person:
        await _known(person)
        await person.app.live.conversation.run_command("open", "")
        await person.app.live.conversation.run_command("open2", "")
        await person.sees("Second")
        await person.app.live.conversation.close_panel("two")
        await person.misses("Second")
        await person.says("/lock ")
        await person.sees("the tools are confined to the directory")
        await person.misses("keys go here")
        await person.app.live.conversation.run_command("open", "")
        await person.sees("keys go here")


async def test_reloading_takes_every_change_or_keeps_the_previous_state(tmp_path: Path) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),)) as person:
        await _known(person)
        program = player.directory / "run.py"
        good = program.read_text()
        program.write_text("#!/bin/sh\nexit 3\n")
        await person.says("/reload-ext ")
        await person.sees("the extensions were not reloaded: player:")
        await person.says("/display ")
        await person.sees("• shown")
        program.write_text(good.replace("- shown", "- reloaded"))
        await person.says("/reload-ext ")
        await person.sees("running: player")
        await person.says("/display ")
        await person.sees("• reloaded")


async def test_reloading_asks_about_changes_of_the_project_and_keeps_the_running_version_if_untrusted(
    tmp_path: Path,
) -> None:
    player = Extension(tmp_path / ".zot" / "extensions", "player", PLAYER)
    async with stage(tmp_path) as person:
        await person.decides("Trust the extension player of this project?", "y")
        await _known(person)
        program = player.directory / "run.py"
        program.write_text(program.read_text().replace("- shown", "- reloaded"))
        await person.says("/reload-ext ")
        await person.decides("Trust the extension player of this project?", "n")
        await person.sees("were not reloaded: player: it has changed")
        await person.says("/display ")
        await person.sees("• shown")
        await person.says("/reload-ext ")
        await person.decides("Trust the extension player of this project?", "y")
        await person.sees("running: player")
        await person.says("/display ")
        await person.sees("• reloaded")


async def test_a_project_s_extensions_run_only_if_the_user_trusts_them(tmp_path: Path) -> None:
    Extension(tmp_path / ".zot" / "extensions", "player", PLAYER)
    skill = tmp_path / ".zot" / "skills" / "sweep"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: sweep\ndescription: how to sweep\n---\n")
    async with stage(tmp_path) as person:
        await person.sees("Trust the extension player of this project?")
        assert "It is a program: it can do whatever you can do." in person.screen
        await person.decides("Trust the extension player of this project?", "y")
        await person.decides("Trust the skill sweep of this project?", "n")
        await _known(person)
        await person.says("/skills ")
        await person.sees("write-zot-extension")
        assert "sweep" not in person.screen
    async with stage(tmp_path) as person:
        await person.decides("Trust the skill sweep of this project?", "y")
        await person.sees("ready")
        await person.says("/skills ")
        await person.sees("how to sweep")


@pytest.mark.parametrize("size", [(40, 10), (40, 14), (80, 24)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_question_has_room_although_panels_are_open(tmp_path: Path, size: tuple[int, int]) -> None:
    player = Extension(tmp_path, "player", PLAYER)
    async with stage(tmp_path, ext=(str(player.directory),), size=size, policy=("bash=ask",)) as person:
        await _known(person)
        await person.says("/long")
        await person.sees("> row 0.")
        await person.until(lambda: isinstance(person.app.focused, PanelView), "a panel has the keys")
        person.app.screen.set_focus(person.app.editor)
        await person.says("/open2")
        await person.until(lambda: isinstance(person.app.focused, PanelView), "a panel has the keys")
        entered = person.app.focused
        await person.app.terminal.submit(
            "!bash touch it-ran; echo " + " ".join(f"word{number}" for number in range(20))
        )
        await person.until(lambda: isinstance(person.app.focused, QuestionView), "the question has the keys")
        texts = ("bash wants to run; may it?", "touch it-ran", "y  allow it", "a  allow it", "n  do not", "y, a or n")
        await person.until(lambda: all(text in person.screen for text in (*texts, "waiting for you")), "all of it")
        await person.pilot.press("pagedown", "pagedown", "pagedown", "pagedown", "pagedown", "pagedown")
        await person.sees("word19")
        await person.sees("y  allow it this time")
        await person.pilot.press("y")
        await person.idle()
        assert (tmp_path / "it-ran").exists()
        assert person.app.focused is entered
        await person.sees("> row 0.")
        await person.sees("Shift+Tab")


async def test_panels_and_questions_fit_a_screen_that_becomes_lower_or_higher(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(80, 30), policy=("bash=ask",)) as person:
        await person.sees("ready")
        await person.app.panels.apply(PanelOpened("player", "p", "Long", tuple(f"row {n}." for n in range(60)), "foot"))
        for height in (10, 40):
            await person.pilot.resize_terminal(80, height)
            await person.until(lambda: "foot" in person.screen and "ready" in person.screen, "its end and the status")
        await person.sees("row 15.")
        await person.app.panels.apply(PanelClosed("player", "p"))
        lines = "\n".join(f"echo {number}" for number in range(1, 15))
        await person.app.terminal.submit(f"!bash {lines}")
        await person.until(lambda: isinstance(person.app.focused, QuestionView), "the question has the keys")
        await person.pilot.resize_terminal(80, 10)
        texts = ("bash wants to run; may it?", "echo 1", "more lines", "y  allow it", "n  do not", "waiting for you")
        await person.until(lambda: all(text in person.screen for text in texts), "all of it on a low screen")
        await person.pilot.resize_terminal(80, 50)
        await person.until(lambda: "echo 14" in person.screen and "more line" not in person.screen, "the whole command")


async def test_a_panel_s_owner_is_visible_however_long_its_title_is(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(60, 20)) as person:
        await person.sees("ready")
        opened = PanelOpened("scratchpad", "p", "A title " * 40, ("one line",))
        await person.app.panels.apply(opened)
        await person.sees("one line")
        [title] = [row for row in person.screen.split("\n") if "A title" in row]
        assert "… (scratchpad): Shift+Tab enters it" in title
        await person.pilot.resize_terminal(100, 20)
        await person.until(lambda: person.screen.count("A title") > 6, "more of the title")
        assert "… (scratchpad): Shift+Tab enters it" in person.screen


async def test_a_panel_can_be_closed_even_if_its_owner_forgot_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as person:
        await person.sees("ready")
        await person.app.panels.apply(PanelOpened("player", "lost", "Lost", ("its extension is gone",)))
        await person.sees("its extension is gone")
        await person.pilot.press("shift+tab", "escape")
        await person.misses("its extension is gone")
        assert "no panel" not in person.screen
        assert person.app.focused is person.app.editor
