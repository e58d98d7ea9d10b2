"""Long conversations and fast models: the work grows with the screen, not with the transcript."""

from __future__ import annotations

from pathlib import Path

from textual.strip import Strip

from ui.terminal.stage import stage
from zot.events import AssistantStart, Done, TextDelta, TurnStart
from zot.session.history import Batch
from zot.ui.terminal.entries import AnswerEntry
from zot.ui.terminal.styles import Look


class Counted(AnswerEntry):
    """An answer that records whether it was drawn."""

    drawings = 0

    def draw(self, width: int, look: Look) -> list[Strip]:
        Counted.drawings += 1
        return super().draw(width, look)


async def test_only_the_visible_part_of_a_long_conversation_is_drawn(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(80, 24)) as person:
        await person.sees("ready")
        Counted.drawings = 0
        entries = [Counted(f"# Answer {number}\n\nIt is `{number}`.\n\n- one\n- two\n") for number in range(2000)]
        person.app.transcript.add(*entries)
        person.app.transcript.settle()
        await person.sees("Answer 1999")
        assert Counted.drawings < 60
        await person.pilot.press("ctrl+home")
        await person.sees("Answer 0")
        for _ in range(3):
            await person.pilot.press("pagedown")
        await person.sees("It is 10.")
        assert Counted.drawings < 150
        person.app.transcript.show_entry(entries[1000])
        await person.sees("Answer 1000")
        assert person.screen.split("\n")[0].strip() == "Answer 1000"
        await person.pilot.press("ctrl+end")
        await person.sees("Answer 1999")
        assert Counted.drawings < 250


async def test_thousands_of_deltas_are_drawn_a_few_times(tmp_path: Path) -> None:
    async with stage(tmp_path, size=(80, 24)) as person:
        await person.sees("ready")
        feed, drawn = person.app.live.feed, 0
        settle = person.app.transcript.settle

        def counted() -> None:
            nonlocal drawn
            drawn += 1
            settle()

        person.app.transcript.settle = counted  # type: ignore[method-assign]  # to see how often it is called
        feed.deliver(Batch(0, 1, [TurnStart(1), AssistantStart()]))
        for number in range(5000):
            feed.deliver(Batch(0, 1, [TextDelta(f"w{number} ")]))
        await person.pilot.press("a")
        assert person.app.editor.text == "a"
        await person.sees("w4999")
        assert drawn < 20
        feed.deliver(Batch(0, 1, [Done()]))
        await person.idle()
