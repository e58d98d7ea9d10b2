"""What a transcript is made of: something said, thought, called or noted. Each knows how to draw itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from zot.ui.readable import counted, size
from zot.ui.terminal.level import Level
from zot.ui.terminal.looks import Look, safe
from zot.ui.terminal.markdown import Flow
from zot.ui.terminal.markdown_part import drawn, with_prefix

_LEVELS: dict[Level, str] = {"info": "dim", "success": "green", "warn": "yellow", "error": "red"}
DIM = Style(dim=True)
#: Longer lines of prose are hard to read.
_WIDEST = 120


class Entry:
    """Something in the transcript. ``version`` grows whenever it looks different."""

    #: True if there is more of it than is shown at first.
    foldable = False

    def __init__(self) -> None:
        self.version = 0
        self.folded = True
        #: The lines of its images, where those can be shown, and who is told that they are wanted.
        self.pictures: list[Strip] = []
        self.wanted: Callable[[], None] | None = None

    def draw(self, width: int, look: Look) -> list[Strip]:
        """Return its lines."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """What it says, to be copied, and to be guessed how long it is."""
        raise NotImplementedError

    def hung(self) -> list[Strip]:
        """Return the lines of its images, as far as they are known."""
        wanted, self.wanted = self.wanted, None
        if wanted is not None:
            wanted()
        return self.pictures

    def touch(self) -> None:
        """It looks different from now on."""
        self.version += 1

    def estimate(self, width: int) -> int:
        """Guess how many lines it has, at once."""
        return sum(len(line) // max(1, width - 2) + 1 for line in self.text.split("\n"))


class UserEntry(Entry):
    """What the user said. ``images`` are their types and sizes."""

    def __init__(self, text: str, images: Sequence[tuple[str, int]] = ()) -> None:
        super().__init__()
        self._text = text
        self._images = images

    @property
    def text(self) -> str:
        return self._text

    def draw(self, width: int, look: Look) -> list[Strip]:
        text = "\n".join([safe(self._text), *(image(*one) for one in self._images)]).strip("\n")
        lines = drawn(Text(text, style="bold"), width - 2)
        said = with_prefix(lines, Segment(f"{look.user} ", Style(color="cyan", bold=True)), Segment("  "))
        return [*said, *self.hung()]


class AnswerEntry(Entry):
    """What the model says, as Markdown, while it says it."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._text = safe(text) if text else ""
        self._flow = Flow()

    @property
    def text(self) -> str:
        return self._text

    def add(self, delta: str) -> None:
        """More was said."""
        self._text += safe(delta)
        self.touch()

    def replace(self, text: str) -> None:
        """Something else was said, after all."""
        if (text := safe(text)) != self._text:
            self._text, self._flow = text, Flow()
            self.touch()

    def draw(self, width: int, look: Look) -> list[Strip]:
        return self._flow.lines(self._text, min(width - 2, _WIDEST), look, Segment("  "))


class ThoughtEntry(Entry):
    """What the model thinks: folded into one line, unless somebody wants to see it."""

    foldable = True

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._parts = [safe(text)]
        self.is_over = bool(text)

    @property
    def text(self) -> str:
        return "".join(self._parts) if not self.folded else "thinking"

    def add(self, delta: str) -> None:
        """More was thought."""
        self._parts.append(safe(delta))
        self.touch()

    def end(self) -> None:
        """It has been thought."""
        self.is_over = True
        self.touch()

    def draw(self, width: int, look: Look) -> list[Strip]:
        whole = "".join(self._parts)
        mark = look.folded if self.folded else look.unfolded
        what = f"thought, {counted(len(whole.split()), 'word')}" if self.is_over else f"thinking{look.more}"
        head = drawn(Text(f"{mark} {what}", style="dim italic", no_wrap=True, overflow="ellipsis"), width)
        if self.folded:
            return head
        return head + with_prefix(
            drawn(Text(whole.strip(), style="dim italic"), width - 2), Segment("  "), Segment("  ")
        )


class NoteEntry(Entry):
    """Something that is no part of the conversation: of an extension, or of zot itself."""

    def __init__(self, text: str, level: Level = "info", *, source: str = "") -> None:
        super().__init__()
        self._text = f"[{safe(source)}] {safe(text)}" if source else safe(text)
        self.level: Level = level

    @property
    def text(self) -> str:
        return self._text

    def draw(self, width: int, look: Look) -> list[Strip]:
        lines = drawn(Text(self._text, style=_LEVELS[self.level]), width - 2)
        return with_prefix(lines, Segment(f"{look.bar} ", DIM), Segment(f"{look.bar} ", DIM))


class DisplayEntry(AnswerEntry):
    """A note that an extension wants shown, as Markdown."""

    def __init__(self, text: str, *, source: str) -> None:
        super().__init__(text)
        self._source = safe(source)

    def draw(self, width: int, look: Look) -> list[Strip]:
        bar = Segment(f"{look.bar} ", DIM)
        head = Strip([bar, Segment(f"[{self._source}]", Style(color="magenta"))])
        return [head, *self._flow.lines(self._text, width - 2, look, bar)]


def image(mime_type: str, count: int) -> str:
    """Return what stands for an image."""
    return f"[{safe(mime_type)}, {size(count)}]"
