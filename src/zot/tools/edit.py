"""The edit tool: exact replacements in one file, all or none, with hints for near misses."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from zot.errors import ToolFailed
from zot.messages import TextBlock
from zot.tools.base import Output, ReadState, ToolContext, decode_args, to_utf8, version_of
from zot.tools.checkpoints import content_of, wrote
from zot.tools.command_output import Excerpt
from zot.tools.diff import Change, Row, Skipped, apply, common_start, diff, lines_in_common
from zot.tools.file_access import FileLocation, Paths, UnrestrictedPaths, read_at
from zot.tools.specs import EDIT
from zot.tools.text_encoding import BROKEN_UTF_8, LATIN_1, UTF_8, WINDOWS_1252, Encoding, detect, to_units

if TYPE_CHECKING:
    from zot.tools.documents import OpenDocuments

_BLOCK = 8192
MAX_FILE_BYTES = 32 * 1024 * 1024
_MAX_LISTED = 10
MAX_COMPARED_CHARACTERS = 1024 * 1024
MAX_COMPARED_LINES = 20_000
MAX_SHOWN_CHARACTERS = 1000
#: Lines repeated more often than this are ignored as hints of a position.
_MAX_REPEATS = 8
#: Minimum share of a text, by length of lines, that must be at a place for it to be the closest.
_LEAST_SHARE = 0.2
_LEAST_SIMILARITY = 0.6


class EditPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    old_text: str = msgspec.field(name="oldText")
    new_text: str = msgspec.field(name="newText")


class EditArgs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    edits: tuple[EditPair, ...]


class Edit:
    """Edits files within ``paths`` for the model. Refuses a file that changed since it was ``seen``."""

    spec = EDIT
    read_only = False

    def __init__(
        self, paths: Paths | None = None, seen: ReadState | None = None, documents: OpenDocuments | None = None
    ) -> None:
        self._paths = UnrestrictedPaths() if paths is None else paths
        self._seen = ReadState() if seen is None else seen
        self._documents = documents

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Make all edits and return their diff. Raise ToolFailed, leaving the file unchanged."""
        wanted = decode_args(args, EditArgs)
        if not wanted.edits:
            raise ToolFailed("at least one edit is required")
        with self._paths.find(wanted.path, context.cwd) as found:
            place = found if self._documents is None else await self._documents.locate(found, context.reporter)
            data, about = _content(place, wanted.path)
            if self._seen.is_stale(place.keys, version_of(data, about)):
                raise ToolFailed(f"{wanted.path} has changed since you last saw it; read it again before you edit it")
            readings = _readings(data, detect(data) or UTF_8)
            changes = _in_order(await _all_placed(readings, wanted.edits))
            shown = (
                _shown(diff(readings[0].units, changes, readings[0].encoding))
                or "[that is what the file already had]\n"
            )
            await asyncio.sleep(0)
            new = apply(data, changes)
            if context.reporter.keeps_changes:
                await context.reporter.writing(wrote(place.path, context.cwd, content_of(data), content_of(new)))
            # No other await from here on: an abort must not report an unchanged file after the change.
            replaced = await place.save(new, expected=about)
            if place.keys in self._seen:
                self._seen.note(place.keys, version_of(new, replaced.about))
        return (TextBlock(shown + "".join(f"[{note}]\n" for note in replaced.notes)),)


def _shown(rows: Iterable[Row]) -> str:
    excerpt = Excerpt()
    for row in rows:
        excerpt.skip(*row) if isinstance(row, Skipped) else excerpt.feed(row)
    return excerpt.text()


class _Edit(NamedTuple):
    """One edit: its match and its change."""

    match: Match
    change: Change


def _content(place: FileLocation, shown: str) -> tuple[bytes, os.stat_result]:
    with place.open() as fd:
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            raise ToolFailed(f"cannot edit {shown}: it is a directory")
        if about.st_size > MAX_FILE_BYTES:
            raise ToolFailed(
                f"cannot edit {shown}: it has {about.st_size} bytes and the limit is {MAX_FILE_BYTES}; "
                "change it with bash, for example with sed"
            )
        return read_at(fd, about.st_size, 0), about


async def _all_placed(readings: Sequence[FileText], pairs: Sequence[EditPair]) -> list[_Edit]:
    """Find the matches of all edits. Yields to the event loop between them; a thread could not be cancelled."""
    edits = []
    for number, pair in enumerate(pairs, 1):
        edits.append(_placed(readings, pair, f"edit {number}"))
        await asyncio.sleep(0)
    return edits


def _placed(readings: Sequence[FileText], pair: EditPair, label: str) -> _Edit:
    """Find the only match of an edit. Raise ToolFailed that explains a missing match, or lists several."""
    old, new = pair.old_text, pair.new_text
    to_utf8(old, f"{label} oldText")
    to_utf8(new, f"{label} newText")
    if not old:
        raise ToolFailed(f"{label}: oldText must not be empty")
    if old == new:
        raise ToolFailed(f"{label}: oldText equals newText")
    for text in readings:
        found = _matches(text, old)
        if len(found) > 1:
            raise ToolFailed(
                f"{label}: oldText matches {_several(text, found)}; give more of the text around one of them"
            )
        if found:
            return _Edit(found[0], _change(text, found[0], pair, label))
    raise ToolFailed(f"{label}: oldText not found; {_nearly(readings[0], old)}")


def _readings(data: bytes, encoding: Encoding) -> list[FileText]:
    """Return the possible readings of a file, the likeliest first.

    In a file that is not all UTF-8, the read tool detects the encoding of each window separately.
    """
    is_mixed = encoding in (BROKEN_UTF_8, LATIN_1, WINDOWS_1252)
    others = [one for one in (UTF_8, LATIN_1, WINDOWS_1252) if is_mixed and one.codec != encoding.codec]
    return [FileText(data, one) for one in (encoding, *others)]


def _matches(text: FileText, old: str) -> list[Match]:
    """Return the matches of ``old``, at most one more than would be listed."""
    try:
        return list(islice(text.matches(old), _MAX_LISTED + 1))
    except UnicodeEncodeError:  # a text that the encoding cannot represent is not in the file
        return []


def _change(text: FileText, match: Match, pair: EditPair, label: str) -> Change:
    try:
        return text.change(match, pair.old_text, pair.new_text)
    except UnicodeEncodeError as exc:
        character = exc.object[exc.start]
        raise ToolFailed(
            f"{label}: newText has {character!r} (U+{ord(character):04X}), which cannot be written in "
            f"{text.encoding.name}, as the file seems to be"
        ) from exc


def _nearly(text: FileText, old: str) -> str:
    data, encoding = text.data, text.encoding
    try:
        encoding.encode(old)
    except UnicodeEncodeError as exc:
        character = exc.object[exc.start]
        return f"the file seems to be {encoding.name}, which has no {character!r} (U+{ord(character):04X})"

    start = data[: MAX_COMPARED_CHARACTERS * encoding.unit].removeprefix(encoding.bom)
    return explain_near_miss(encoding.decode(start), old)


def _several(text: FileText, found: Sequence[Match]) -> str:
    lines = ", ".join(str(text.line_number(match.start)) for match in found[:_MAX_LISTED])
    if len(found) > _MAX_LISTED:
        return f"more than {_MAX_LISTED} times (lines {lines}, ...)"
    return f"{len(found)} times (lines {lines})"


def _in_order(edits: Sequence[_Edit]) -> list[Change]:
    """Return the changes by position. Raise ToolFailed if two matches overlap."""
    numbered = sorted(enumerate(edits, 1), key=lambda item: item[1].match)
    for (one, before), (two, after) in pairwise(numbered):
        if after.match.start < before.match.end:
            first, second = sorted((one, two))
            raise ToolFailed(f"edits {first} and {second} overlap; merge them into one edit")
    return [edit.change for _, edit in numbered]


class Match(NamedTuple):
    """Range of bytes of a match in a file."""

    start: int
    end: int


class FileText:
    """Content of a file with its encoding, for finding and replacing text."""

    def __init__(self, data: bytes, encoding: Encoding) -> None:
        self.data = data
        self.encoding = encoding
        self._lf = self._as_units("\n")
        self._crlf = self._as_units("\r\n")

    def line_number(self, position: int) -> int:
        """Return the number of the line at ``position``."""
        return self.units.count(self._lf, 0, position // self.encoding.unit) + 1

    def matches(self, old: str) -> Iterator[Match]:
        """Yield the matches of ``old`` in order, overlapping ones included. Raise UnicodeEncodeError.

        Unless ``old`` contains CR, its line ends match LF and CRLF.
        """
        wanted, unit = self._as_units(old), self.encoding.unit
        plain = None if "\r" in old or "\n" not in old else self._plain
        within = self.units if plain is None else plain.text
        at = within.find(wanted)
        while at != -1:
            start, end = at, at + len(wanted)
            if plain is not None:
                start, end = plain.to_file(start), plain.to_file(end)
            yield Match(start * unit, end * unit)
            at = within.find(wanted, at + 1)

    def change(self, match: Match, old: str, new: str) -> Change:
        """Return the change that replaces ``old`` at ``match`` by ``new``. Raise UnicodeEncodeError.

        Common lines at the beginning and the end keep the file's bytes, line ends included. New lines get the line ends
        of those they replace, or else of their neighbours.
        """
        if "\r" in old or "\r" in new:
            return Change(*match, self.encoding.encode(new))
        head, tail = lines_in_common(old, new)
        start = self._moved(match.start, len(self._as_units(old[:head])))
        end = self._moved(match.end, -len(self._as_units(old[len(old) - tail :])))
        text = new[head : len(new) - tail]
        if self._has_crlf(start, end):
            text = text.replace("\n", "\r\n")
        return Change(start, end, self.encoding.encode(text))

    @cached_property
    def units(self) -> str:
        """The content, see `to_units`."""
        return to_units(self.data, self.encoding)

    @cached_property
    def _plain(self) -> _Plain | None:
        return _Plain(self.units, self._crlf, self._lf) if self._crlf in self.units else None

    def _as_units(self, text: str) -> str:
        return to_units(self.encoding.encode(text), self.encoding)

    def _moved(self, position: int, count: int) -> int:
        """Return the position ``count`` units further, where CRLF counts as one."""
        unit = self.encoding.unit
        if not count or self._plain is None:
            return position + count * unit
        return self._plain.to_file(self._plain.from_file(position // unit) + count) * unit

    def _has_crlf(self, start: int, end: int) -> bool:
        """Return whether lines that replace these bytes should end in CRLF.

        Decided by the next line end from there on, or else the previous one; for an insertion the other way round.
        """
        unit = self.encoding.unit
        behind = self.units.find(self._lf, start // unit)
        before = self.units.rfind(self._lf, 0, end // unit)
        at = next((at for at in ((behind, before) if end > start else (before, behind)) if at != -1), 0)
        return at > 0 and self.units[at - 1] == self._crlf[0]


class _Plain:
    """Text with LF for every CRLF, and a mapping of its positions to the file's.

    A pattern that matches either line end would not be linear. The number of CRLFs before each block is known, so that
    only one block is counted to map a position.
    """

    def __init__(self, units: str, crlf: str, lf: str) -> None:
        self.text = units.replace(crlf, lf)
        self._units = units
        self._crlf = crlf
        self._starts = [0]
        for at in range(0, len(units), _BLOCK):
            self._starts.append(self._starts[-1] + _BLOCK - self._dropped(at, at + _BLOCK))

    def from_file(self, position: int) -> int:
        """Map a position of the file to the plain text."""
        block = position // _BLOCK
        return self._starts[block] + position % _BLOCK - self._dropped(block * _BLOCK, position)

    def to_file(self, position: int) -> int:
        """Map a position of the plain text to the file: at a line end, before its CR."""
        block = max(bisect_left(self._starts, position) - 1, 0)
        low, high = block * _BLOCK, min((block + 1) * _BLOCK, len(self._units))
        while low < high:
            middle = (low + high) // 2
            if self.from_file(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low

    def _dropped(self, start: int, end: int) -> int:
        """Return how many of these units the plain text omits: each CR before an LF."""
        return self._units.count(self._crlf, start, end + 1)


def explain_near_miss(text: str, old: str) -> str:
    """Explain how ``old``, which is not in ``text``, nearly matches, and show the place."""
    if not old.split():
        return "it is only whitespace"
    text = text[:MAX_COMPARED_CHARACTERS]
    for difference, simplified in _DIFFERENCES:
        if found := _find(text, old, simplified):
            return f"it would match line {found.number} if {difference} were ignored. The file has there:\n{found.text}"
    lines, wanted = text.split("\n"), old.split("\n")
    if block := _closest_block(lines, wanted):
        return block
    nearest = _nearest_line(lines, max(wanted, key=len))
    if nearest is None:
        return "no line of the file is like it"
    return f"the nearest line is {nearest.number}:\n{nearest.text}"


class _Lines(NamedTuple):
    """Lines of the file, from ``number`` on."""

    number: int
    text: str


class _Simplified(NamedTuple):
    """Text without one kind of difference, and a mapping from its positions to line numbers."""

    text: str
    line_of: Callable[[int], int]


def _without_cr(text: str) -> _Simplified:
    simple = text.replace("\r", "")
    return _Simplified(simple, lambda at: simple.count("\n", 0, at) + 1)


def _without_case(text: str) -> _Simplified:
    simple = text.lower()
    return _Simplified(simple, lambda at: simple.count("\n", 0, at) + 1)


def _without_spaces(text: str) -> _Simplified:
    def line_of(at: int) -> int:
        start = 0
        for word in re.finditer(r"\S+", text):
            start = word.start()
            at -= len(word[0])
            if at < 0:
                break
        return text.count("\n", 0, start) + 1

    return _Simplified("".join(text.split()), line_of)


def _without_both(text: str) -> _Simplified:
    simple = _without_spaces(text)
    return simple._replace(text=simple.text.lower())


_DIFFERENCES: Sequence[tuple[str, Callable[[str], _Simplified]]] = (
    ("line ends", _without_cr),
    ("whitespace", _without_spaces),
    ("case", _without_case),
    ("whitespace and case", _without_both),
)


def _find(text: str, old: str, simplified: Callable[[str], _Simplified]) -> _Lines | None:
    within, wanted = simplified(text), simplified(old).text
    at = within.text.find(wanted)
    if at == -1:
        return None
    first, last = within.line_of(at), within.line_of(at + len(wanted.rstrip("\n")) - 1)
    return _Lines(first, _cut("\n".join(text.split("\n")[first - 1 : last])))


def _closest_block(lines: Sequence[str], wanted: Sequence[str]) -> str | None:
    """Explain where most of ``wanted`` is, and its first differing line; None if no place has enough of it."""
    weights = [len(line.strip()) for line in wanted if line.strip()]
    if len(weights) < 2:
        return None
    start, weight = _vote(lines, wanted)
    pairs = [(_line_at(lines, start + number), line.strip()) for number, line in enumerate(wanted)]
    differing = [number for number, pair in enumerate(pairs) if not _agree(*pair, number=number, last=len(pairs) - 1)]
    if weight < _LEAST_SHARE * sum(weights) or not differing:
        return None
    has, should_have = pairs[differing[0]]
    at = max(start + differing[0], 0) + 1
    return (
        f"the closest place begins at line {max(start, 0) + 1}, where line {at} differs.\n"
        f"The file has: {_cut(has) or 'nothing'}\noldText has:  {_cut(should_have) or 'nothing'}"
    )


def _vote(lines: Sequence[str], wanted: Sequence[str]) -> tuple[int, int]:
    """Return the line where the most of ``wanted``, by length, would match, and the matching length."""
    numbers: dict[str, list[int]] = {}
    for number, line in enumerate(wanted):
        numbers.setdefault(line.strip(), []).append(number)
    telling = {line: at for line, at in numbers.items() if len(at) <= _MAX_REPEATS}
    votes: Counter[int] = Counter()
    for at, line in enumerate(lines):
        stripped = line.strip()
        for number in telling.get(stripped, ()):
            votes[at - number] += len(stripped)
    return max(votes.items(), key=lambda vote: vote[1], default=(0, 0))


def _line_at(lines: Sequence[str], at: int) -> str:
    return lines[at].strip() if 0 <= at < len(lines) else ""


def _agree(has: str, wanted: str, *, number: int, last: int) -> bool:
    """Return whether two lines match; the first and the last of a text need not be complete."""
    return has == wanted or (number == 0 and has.endswith(wanted)) or (number == last and has.startswith(wanted))


def _nearest_line(lines: Sequence[str], wanted: str) -> _Lines | None:
    """Return the line most similar to ``wanted``; None if none is similar. Compares only the first of equal lines."""
    wanted = wanted.strip()
    words = set(_words(wanted))
    firsts: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        firsts.setdefault(line.strip(), number)
    best, best_score = None, _LEAST_SIMILARITY
    for line, number in islice(firsts.items(), MAX_COMPARED_LINES):
        score = _similarity(wanted, words, line)
        if score > best_score:
            best, best_score = number, score
    return None if best is None else _Lines(best, _cut(lines[best - 1].rstrip("\r")))


def _similarity(wanted: str, words: set[str], line: str) -> float:
    """Return a similarity of 0 to 2: the share of common words, plus that of common beginning and end.

    Words find a line with changed order, the ends find one with a change in the middle; both are linear.
    """
    others = set(_words(line))
    if not words & others:
        return 0.0
    common = 2 * len(words & others) / (len(words) + len(others))
    ends = common_start(wanted, line) + common_start(wanted[::-1], line[::-1])
    length = max(len(wanted), len(line))
    return common + min(ends, length) / length


def _words(line: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", line)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."
