"""What a list of sessions shows of each, kept up to date with its rows. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from zot.events import Usage
from zot.messages import Counters, text_of
from zot.store import Configured, Counted, Row, Said, Spliced
from zot.surrogates import without_halves

_MAX_TITLE = 80
_TELLING = frozenset({Said, Spliced, Configured, Counted, Usage})


class Summary(msgspec.Struct):
    """What rows add to what is known: messages of the conversation (less than none, if some were taken out), the newest
    totals, the first words, the directory that the session works in by now, and the mark of an owner who has left."""

    messages: int = 0
    totals: Counters | None = None
    words: str = ""
    cwd: str = ""
    left: bytes = b""

    def add(self, rows: Iterable[Row]) -> None:
        """Take more rows into account."""
        for row in rows:
            match row:
                case Said(message=message):
                    self.messages += 1
                    if not self.words and message.role == "user":
                        self.words = titled(text_of(message.content))
                case Spliced(start=start, stop=stop, messages=messages):
                    self.messages += len(messages) - (stop - start)
                case Usage(cumulative=totals) | Counted(cumulative=totals):
                    self.totals = totals
                case Configured(cwd=cwd):
                    self.cwd = cwd or self.cwd
                case _:
                    pass

    def extend(self, other: Summary) -> None:
        """Take into account what rows behind these add."""
        self.messages += other.messages
        self.totals = other.totals if other.totals is not None else self.totals
        self.words = self.words or other.words
        self.cwd = other.cwd or self.cwd
        self.left = other.left or self.left

    def values(self) -> tuple[Any, ...]:
        """Return what it says, as `tables.summed_up` takes it: None where nothing changes."""
        totals = None if self.totals is None else msgspec.json.encode(self.totals)
        return self.messages, self.words, totals, key_of(self.cwd) if self.cwd else None, self.left or None


def key_of(name: str) -> bytes:
    """Return an id, or a path, as it is stored. Any string is one, also what no UTF-8 can say."""
    return name.encode("utf-8", "surrogatepass")


def summarise(rows: Sequence[Row]) -> Summary | None:
    """Return what ``rows`` add to what is known; None if that is nothing, as with most."""
    if _TELLING.isdisjoint({*map(type, rows)}):
        return None
    summary = Summary()
    summary.add(rows)
    return summary


def added(rows: Sequence[Row]) -> int:
    """Return how many messages ``rows`` add to the conversation."""
    summary = summarise(rows)
    return 0 if summary is None else summary.messages


def titled(text: str) -> str:
    """Return ``text`` as a title: one line, not long, that any table takes."""
    line = " ".join(without_halves(text[: 4 * _MAX_TITLE]).split())
    return line if len(line) <= _MAX_TITLE else f"{line[: _MAX_TITLE - 1]}…"
