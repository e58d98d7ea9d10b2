"""The transcript widget, which draws only entries near the window."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Region, Size
from textual.message_pump import MessagePump
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from zot.ui.terminal.styles import Look
from zot.ui.terminal.textual_patches import is_backlogged, set_scroll_size

if TYPE_CHECKING:
    from zot.ui.terminal.entries import Entry

#: The shortest time between two draws; a slow draw is followed by a rest of this many times its duration.
_FRAME_S = 1 / 20
_REST = 4

#: Entries whose lines are cached; of the others only the height is known.
_MAX_DRAWN = 300
#: Entries within this many windows are drawn ahead.
_AHEAD = 2
_AHEAD_S = 0.02
#: Padded rows that are cached.
_MAX_FINISHED = 2000

#: An entry's version, and its lines.
Drawn: TypeAlias = tuple[int, list[Strip]]
_LEFT = Segment(" ")
_NOTHING = Strip([])
_REVERSED = Style(reverse=True)


class Pace:
    """Calls ``show`` on request in the context of ``pump``, and limits how often."""

    def __init__(self, pump: MessagePump, show: Callable[[], None], *, frame_s: float = _FRAME_S) -> None:
        """``frame_s``: the shortest time between two calls."""
        self._frame_s = frame_s
        self._pump = pump
        self._show = show
        self._resting = False
        self._wanted = False

    def want(self) -> None:
        """Request a call. May be called from anywhere in the event loop."""
        self._wanted = True
        if not self._resting:
            self._resting = True
            # The caller has another context; timers need the pump's.
            self._pump.call_later(self._rest, self._frame_s)

    def _rest(self, seconds: float) -> None:
        self._pump.set_timer(seconds, self._on_timer)

    def _on_timer(self) -> None:
        if not self._wanted:
            self._resting = False
            return
        if is_backlogged(self._pump.app):
            self._rest(self._frame_s)
            return
        self._wanted = False
        began = time.process_time()
        self._show()
        # Measured after the refresh, to include drawing.
        self._pump.call_after_refresh(lambda: self._rest(max(self._frame_s, _REST * (time.process_time() - began))))


class TranscriptView(ScrollView, can_focus=True):
    """A list of entries that stays at its end while entries are added, unless the user scrolls up."""

    DEFAULT_CSS = """
    TranscriptView { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; overflow-x: hidden; }
    """
    FOCUS_ON_CLICK = False
    BINDINGS = [  # noqa: RUF012  (as every widget has it)
        Binding("j", "mark(1)", "next block", show=False),
        Binding("k", "mark(-1)", "previous block", show=False),
        Binding("enter,space", "fold", "fold", show=False),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.entries: list[Entry] = []
        #: True while the window stays at the end.
        self.follows = True
        self._look = look
        self._heights: list[int] = []
        #: Padded rows and their sources, by identity of the source.
        self._finished: dict[int, tuple[Strip, Strip]] = {}
        #: The entry's version that its height was measured at; -1 if the height is an estimate.
        self._measured: list[int] = []
        self._offsets: list[int] = [0]
        self._drawn: OrderedDict[int, Drawn] = OrderedDict()
        #: The rows and the position of the window when it was last settled.
        self._window: list[Strip] = []
        self._window_top = 0
        self._width = 0
        self._settling = False
        self._marked: Entry | None = None
        self._ahead = Pace(self, self._draw_ahead, frame_s=_AHEAD_S)

    # Content.

    def add(self, *entries: Entry) -> None:
        """Append entries. `settle` shows them."""
        for entry in entries:
            self.entries.append(entry)
            self._heights.append(self._estimate(entry))
            self._measured.append(-1)

    def clear(self) -> None:
        """Remove all entries."""
        for items in (self.entries, self._heights, self._measured, self._drawn, self._finished):
            items.clear()
        self._marked, self.follows = None, True
        self.settle()

    def fold_all(self) -> None:
        """Fold all entries; if all are folded, unfold them."""
        foldable = [entry for entry in self.entries if entry.foldable]
        folded = any(not entry.folded for entry in foldable)
        for entry in foldable:
            entry.folded = folded
            entry.touch()
        self.settle()

    def show_entry(self, entry: Entry) -> None:
        """Scroll to an entry."""
        self.follows = False
        self._settle_at(self._offsets[self.entries.index(entry)], anchor=self.entries.index(entry))

    def show_end(self) -> None:
        """Scroll to the end, and stay there."""
        self.follows = True
        self.settle()

    def settle(self) -> None:
        """Update the window."""
        self._settle_at(round(self.scroll_y))

    # Layout.

    def _estimate(self, entry: Entry) -> int:
        return entry.estimate(self._width) + 1 if self._width else 2

    def _settle_at(self, top: int, anchor: int | None = None) -> None:
        """Measure the entries near the window, and keep its end or its top in place."""
        height = self.scrollable_content_region.height
        if not self._width or not height:
            return
        self._settling = True
        try:
            self._lay_out()
            within = 0
            if anchor is None:
                anchor = self._index(top)
                within = top - self._offsets[anchor]
            while True:
                if self.follows:
                    top = max(0, self._offsets[-1] - height)
                elif self.entries:
                    top = max(0, min(self._offsets[anchor] + within, self._offsets[-1] - height))
                if not self._measure(top, top + height):
                    break
                self._lay_out()
            set_scroll_size(self, Size(self._width + 2, self._offsets[-1]))
            self.scroll_to(y=top, animate=False, immediate=True, force=True)
        finally:
            self._settling = False
        self._refresh_changed(top, height)
        self._request_ahead()

    def _refresh_changed(self, top: int, height: int) -> None:
        """Redraw the rows of the window that changed: while text streams, only the last one."""
        before, now = self._window, [self._row(row) for row in range(top, top + height)]
        self._window, former_top, self._window_top = now, self._window_top, top
        is_marked = self._marked is not None or self.text_selection is not None
        if top != former_top or len(before) != height or is_marked:
            self.refresh()
            return
        changed = [y for y, row in enumerate(now) if row is not before[y] and row != before[y]]
        if changed:
            self.refresh(*(Region(0, y, self.outer_size.width, 1) for y in changed))

    def _lay_out(self) -> None:
        self._offsets = [0, *accumulate(self._heights)]

    def _measure(self, first: int, last: int) -> bool:
        """Draw the entries of these rows. True if a height differs from its estimate."""
        changed = False
        for index in range(self._index(max(0, first)), len(self.entries)):
            if self._offsets[index] >= last:
                break
            entry = self.entries[index]
            if self._measured[index] != entry.version:
                height = len(self._lines(index))
                changed = changed or height != self._heights[index]
                self._heights[index], self._measured[index] = height, entry.version
        return changed

    def _index(self, row: int) -> int:
        return max(0, min(bisect_right(self._offsets, row) - 1, len(self.entries) - 1))

    def _lines(self, index: int) -> list[Strip]:
        """Return the lines of an entry and an empty one."""
        entry = self.entries[index]
        key = id(entry)
        if self._is_drawn(index):
            self._drawn.move_to_end(key)
            return self._drawn[key][1]
        lines = [*entry.draw(self._width, self._look), _NOTHING]
        self._drawn[key] = (entry.version, lines)
        while len(self._drawn) > _MAX_DRAWN:
            self._drawn.popitem(last=False)
        return lines

    def _is_drawn(self, index: int) -> bool:
        known = self._drawn.get(id(self.entries[index]))
        return known is not None and known[0] == self.entries[index].version

    def _row(self, row: int) -> Strip:
        """Return a row of the whole transcript."""
        if not 0 <= row < self._offsets[-1]:
            return _NOTHING
        index = self._index(row)
        lines, within = self._lines(index), row - self._offsets[index]
        return lines[within] if within < len(lines) else _NOTHING

    # Rendering.

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return rows of the window. Skips Textual's drawing of borders and padding: there are none."""
        top, width, style = self.scroll_offset.y, self.outer_size.width, self.rich_style
        strips = [self._shown(top + y, width, style) for y in crop.line_range]
        background = self.background_colors[1]
        for one in self.get_line_filters():
            strips = [strip.apply_filter(one, background) for strip in strips]
        if crop.column_span != (0, width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """Return a row of the window with offsets, for text selection."""
        row = self.scroll_offset.y + y
        return self._shown(row, self.outer_size.width, self.rich_style).apply_offsets(0, row)

    def _shown(self, row: int, width: int, style: Style) -> Strip:
        """Return a padded row of the whole transcript, with mark and selection."""
        strip, selection = self._row(row), self.text_selection
        if selection is None and self._marked is None:
            if id(strip) not in self._finished:
                if len(self._finished) > _MAX_FINISHED:
                    self._finished.clear()
                self._finished[id(strip)] = (strip, _padded(strip, width, style))
            return self._finished[id(strip)][1]
        if self._marked is not None and self._is_head(row, self._marked):
            strip = strip.apply_style(_REVERSED)
        if selection is not None and (span := selection.get_span(row)) is not None:
            strip = self._selected(strip, max(0, span[0] - 1), span[1] - 1 if span[1] > 0 else span[1])
        return _padded(strip, width, style)

    def _is_head(self, row: int, entry: Entry) -> bool:
        index = self._index(row)
        return self.entries[index] is entry and row == self._offsets[index]

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        end = strip.cell_length if end == -1 else min(end, strip.cell_length)
        if start >= end:
            return strip
        before, chosen, after = strip.crop(0, start), strip.crop(start, end), strip.crop(end)
        return Strip.join([before, chosen.apply_style(_REVERSED), after])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        first = selection.start.y if selection.start is not None else 0
        last = selection.end.y if selection.end is not None else self._offsets[-1] - 1
        rows = []
        for row in range(first, last + 1):
            span = selection.get_span(row)
            if span is not None:
                text = f" {self._row(row).text}"
                rows.append(text[span[0] : None if span[1] == -1 else span[1]].rstrip())
        return "\n".join(rows), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    @property
    def allow_select(self) -> bool:
        return True

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if not self._settling and round(old_value) != round(new_value):
            self.follows = new_value >= self.max_scroll_y
            self.call_next(self._measure_visible)

    def _measure_visible(self) -> None:
        """Measure entries that scroll into the window."""
        top, height = round(self.scroll_y), self.scrollable_content_region.height
        near = range(self._index(top), min(self._index(top + height) + 1, len(self.entries)))
        if any(self._measured[index] < 0 for index in near):
            self.settle()

    def _request_ahead(self) -> None:
        """Draw entries near the window ahead, one at a time."""
        if self._nearest() is not None:
            self._ahead.want()

    def _draw_ahead(self) -> None:
        if (index := self._nearest()) is not None:
            self._lines(index)
            self._request_ahead()

    def _nearest(self) -> int | None:
        """Return the nearest entry that is not drawn."""
        top, height = round(self.scroll_y), self.scrollable_content_region.height
        first, here = self._index(top - _AHEAD * height), self._index(top)
        last = min(self._index(top + (1 + _AHEAD) * height), len(self.entries) - 1)
        near = (*range(here, first - 1, -1), *range(here, last + 1)) if self.entries else ()
        return next((index for index in near[: _MAX_DRAWN // 2] if not self._is_drawn(index)), None)

    def on_resize(self) -> None:
        width = self.scrollable_content_region.width - 2  # a blank at each side
        if width != self._width:
            self._width = width
            self._window = []
            self._drawn.clear()
            self._finished.clear()
            self._measured = [-1] * len(self.entries)
            self._heights = [self._estimate(entry) for entry in self.entries]
        self.settle()

    # Input.

    def wants(self, event: events.Key) -> bool:
        """True for keys with a binding; all others are meant for the editor."""
        return not self.screen.active_bindings.keys().isdisjoint(event.aliases)

    def on_click(self, event: events.Click) -> None:
        row = self.scroll_offset.y + event.y
        if self.entries and row < self._offsets[-1]:
            index = self._index(row)
            if row == self._offsets[index]:
                self._fold(self.entries[index])

    def action_mark(self, step: int) -> None:
        """Mark the next foldable entry."""
        foldable = [entry for entry in self.entries if entry.foldable]
        if not foldable:
            return
        at = foldable.index(self._marked) + step if self._marked in foldable else (len(foldable) - 1 if step < 0 else 0)
        self._marked = foldable[max(0, min(at, len(foldable) - 1))]
        self.show_entry(self._marked)

    def action_fold(self) -> None:
        """Fold or unfold the marked entry."""
        if self._marked is not None:
            self._fold(self._marked)

    def on_blur(self) -> None:
        self._marked = None
        self.refresh()

    def _fold(self, entry: Entry) -> None:
        if entry.foldable:
            entry.folded = not entry.folded
            entry.touch()
            self.follows = False
            self.settle()
            self.follows = self.scroll_y >= self.max_scroll_y


def _padded(strip: Strip, width: int, style: Style) -> Strip:
    return Strip([_LEFT, *strip]).crop_extend(0, width, style)
