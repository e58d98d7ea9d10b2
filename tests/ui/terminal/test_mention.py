"""Files that are named in a prompt: every name that can be written is offered, and found again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ui.terminal.stage import stage
from zot.ui.terminal.composer import FileCompletions
from zot.ui.terminal.mentions import mention, mentioned, mentioned_path

NAMED = [
    ('quo"te.png', "@quo", '@quo"te.png'),
    ('quo"te.png', '@quo"', '@quo"te.png'),
    ('two "quo\\tes.png', "@two", r'@"two \"quo\\tes.png"'),
    ('two "quo\\tes.png', r'@"two \"quo\\', r'@"two \"quo\\tes.png"'),
    ('two "quotes.png', r'@"./two \"', r'@"./two \"quotes.png"'),
    ('"first".png', "@first", r'@"\"first\".png"'),
    ("back\\slash.png", "@back\\", "@back\\slash.png"),
    ("漢\u3000字.png", "@漢", '@"漢\u3000字.png"'),
    ("می\u200cخواهم.png", "@می", "@می\u200cخواهم.png"),
]
UNNAMED = ["bell\a.png", "line\nend.png", "tab\t.png", "turned\u202e.png", os.fsdecode(b"broken\xff.png")]


@pytest.mark.parametrize(("name", "letters", "offered"), NAMED, ids=[letters for _, letters, _ in NAMED])
async def test_a_file_is_offered_as_it_must_be_written_and_found_by_that(
    tmp_path: Path, name: str, letters: str, offered: str
) -> None:
    (tmp_path / name).write_bytes(b"png")
    async with stage(tmp_path) as person:
        await person.sees("ready")
        editor = person.app.editor
        editor.insert(f"!echo {letters}")
        await person.until(lambda: editor.offers)
        await person.pilot.press("tab")
        assert editor.text == f"!echo {offered} "
        await person.pilot.press("enter")
        await person.sees("[image/png, 3 bytes]")
        await person.idle()


@pytest.mark.parametrize("word", ["@", "@./"])
def test_a_path_the_editor_would_change_is_not_offered(tmp_path: Path, word: str) -> None:
    for name in [*UNNAMED, "good.png"]:
        (tmp_path / name).touch()
    assert [one.text for one in FileCompletions(str(tmp_path)).find(word)] == [f"{word}good.png "]


@pytest.mark.parametrize("path", ["a", "a b", 'a"b', '"a', '"a b"', "a\\b", "a\\ b", 'a\\" b\\\\', "\u00a0", "a b\\"])
def test_a_mention_names_the_intended_file(path: str) -> None:
    assert mentioned(f"see {mention(path)} and @other") == [path, "other"]
    assert mentioned_path(mention(f"{path}/")) == f"{path}/"
