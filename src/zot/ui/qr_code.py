"""QR codes (ISO/IEC 18004) of short texts, for a terminal: byte mode, versions 1 to 10, error correction level L."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise, zip_longest
from typing import Final, TypeAlias

from zot.errors import UserError

Matrix: TypeAlias = list[list[bool]]

#: By version, from 1: all codewords, those for error correction in each block, and the number of blocks.
_CODEWORDS: Final = (26, 44, 70, 100, 134, 172, 196, 242, 292, 346)
_CORRECTION: Final = (7, 10, 15, 20, 26, 18, 20, 24, 30, 18)
_BLOCKS: Final = (1, 1, 1, 1, 1, 2, 2, 2, 2, 4)
#: Rows and columns of the alignment patterns' centers.
_CENTERS: Final[Sequence[tuple[int, ...]]] = (
    (),
    (6, 18),
    (6, 22),
    (6, 26),
    (6, 30),
    (6, 34),
    (6, 22, 38),
    (6, 24, 42),
    (6, 26, 46),
    (6, 28, 50),
)
_MASKS: Final[Sequence[Callable[[int, int], bool]]] = (
    lambda row, column: (row + column) % 2 == 0,
    lambda row, column: row % 2 == 0,
    lambda row, column: column % 3 == 0,
    lambda row, column: (row + column) % 3 == 0,
    lambda row, column: (row // 2 + column // 3) % 2 == 0,
    lambda row, column: row * column % 2 + row * column % 3 == 0,
    lambda row, column: (row * column % 2 + row * column % 3) % 2 == 0,
    lambda row, column: ((row + column) % 2 + row * column % 3) % 2 == 0,
)
_LEVEL: Final = 0b01
_QUIET: Final = 4
#: A part of a row that looks like a finder pattern, with its light neighbors on one side.
_FINDER_LIKE: Final = tuple(tuple(digit == "1" for digit in word) for word in ("10111010000", "00001011101"))


def matrix(text: str) -> Matrix:
    """Return the modules of the code of a text, by row; True is dark. Raise UserError if the text is too long."""
    data = text.encode()
    version = next((number for number in range(1, 11) if _bits(data, number) <= 8 * _capacity(number)), None)
    if version is None:
        raise UserError(f"a QR code holds {_capacity(10) - 3} bytes at most, and the text has {len(data)}")
    bits = _stream(_interleaved(_filled(data, version), version))
    drawn = [_drawn(version, bits, mask) for mask in range(len(_MASKS))]
    return min(drawn, key=_penalty)


def rendered(modules: Matrix) -> str:
    """Return the lines of a code for a terminal: two modules a character, black on white whatever its colors are."""
    size = len(modules) + 2 * _QUIET
    light = [False] * size
    rows = [*[light] * _QUIET, *([*light[:_QUIET], *row, *light[:_QUIET]] for row in modules), *[light] * _QUIET]
    lines = []
    for upper, lower in zip_longest(rows[::2], rows[1::2], fillvalue=light):
        cells = (
            "█" if both == (True, True) else "▀" if both[0] else "▄" if both[1] else " "
            for both in zip(upper, lower, strict=True)
        )
        lines.append(f"\x1b[30;107m{''.join(cells)}\x1b[0m\n")
    return "".join(lines)


# Codewords.


def _capacity(version: int) -> int:
    """Return the number of codewords for data."""
    return _CODEWORDS[version - 1] - _CORRECTION[version - 1] * _BLOCKS[version - 1]


def _count_bits(version: int) -> int:
    return 8 if version < 10 else 16


def _bits(data: bytes, version: int) -> int:
    return 4 + _count_bits(version) + 8 * len(data)


def _filled(data: bytes, version: int) -> bytes:
    """Return the codewords of the data: mode, length, bytes, terminator and padding."""
    room = 8 * _capacity(version)
    word = f"0100{len(data):0{_count_bits(version)}b}" + "".join(f"{byte:08b}" for byte in data)
    word += "0" * min(4, room - len(word))
    word += "0" * (-len(word) % 8)
    found = bytes(int(word[at : at + 8], 2) for at in range(0, len(word), 8))
    return found + (b"\xec\x11" * _capacity(version))[: _capacity(version) - len(found)]


def _interleaved(data: bytes, version: int) -> bytes:
    """Return the codewords in the order of the symbol: those of all blocks in turn, then those that correct errors."""
    count, correction = _BLOCKS[version - 1], _CORRECTION[version - 1]
    short, longer = divmod(len(data), count)
    sizes = [short + (number >= count - longer) for number in range(count)]
    starts = [sum(sizes[:number]) for number in range(count)]
    blocks = [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    turns = (zip_longest(*blocks), zip_longest(*(_remainder(block, correction) for block in blocks)))
    return bytes(byte for turn in turns for some in turn for byte in some if byte is not None)


@cache
def _powers() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the powers of 2 in the field GF(256), and their logarithms."""
    powers, value = [], 1
    for _ in range(255):
        powers.append(value)
        value = value << 1 ^ (0x11D if value & 0x80 else 0)
    logarithms = [0] * 256
    for exponent, power in enumerate(powers):
        logarithms[power] = exponent
    return tuple(powers), tuple(logarithms)


def _product(one: int, other: int) -> int:
    powers, logarithms = _powers()
    return powers[(logarithms[one] + logarithms[other]) % 255] if one and other else 0


def _remainder(block: bytes, count: int) -> bytes:
    """Return the Reed-Solomon codewords of a block."""
    powers, _ = _powers()
    generator = [1]
    for exponent in range(count):
        shifted = [*generator, 0]
        for at, factor in enumerate(generator):
            shifted[at + 1] ^= _product(factor, powers[exponent])
        generator = shifted
    rest = [0] * count
    for byte in block:
        factor = byte ^ rest[0]
        rest = [
            one ^ _product(coefficient, factor) for one, coefficient in zip([*rest[1:], 0], generator[1:], strict=True)
        ]
    return bytes(rest)


def _stream(codewords: bytes) -> list[bool]:
    return [bool(byte >> shift & 1) for byte in codewords for shift in range(7, -1, -1)]


# Modules.


def _drawn(version: int, bits: Sequence[bool], mask: int) -> Matrix:
    size = 17 + 4 * version
    modules: list[list[bool | None]] = [[None] * size for _ in range(size)]
    _draw_patterns(modules, version)
    _draw_information(modules, version, mask)
    source = iter(bits)
    for row, column in _path(size):
        if modules[row][column] is None:
            modules[row][column] = next(source, False) ^ _MASKS[mask](row, column)
    return [[bool(module) for module in row] for row in modules]


def _path(size: int) -> Iterator[tuple[int, int]]:
    """Yield the places of data: pairs of columns from the right, upwards and downwards in turn, without column 6."""
    columns = [*range(size - 1, 6, -2), *range(5, 0, -2)]
    for number, right in enumerate(columns):
        rows = range(size) if number % 2 else range(size - 1, -1, -1)
        for row in rows:
            yield row, right
            yield row, right - 1


def _draw_patterns(modules: list[list[bool | None]], version: int) -> None:
    size = len(modules)
    for at in range(8, size - 8):
        modules[6][at] = modules[at][6] = at % 2 == 0
    for top, left in ((0, 0), (0, size - 7), (size - 7, 0)):
        for row in range(max(0, top - 1), min(size, top + 8)):
            for column in range(max(0, left - 1), min(size, left + 8)):
                distance = max(abs(row - top - 3), abs(column - left - 3))
                modules[row][column] = distance in (0, 1, 3)
    centers = _CENTERS[version - 1]
    for row in centers:
        for column in centers:
            if (row, column) in ((6, 6), (6, centers[-1]), (centers[-1], 6)):
                continue
            for down in range(-2, 3):
                for right in range(-2, 3):
                    modules[row + down][column + right] = max(abs(down), abs(right)) != 1


def _draw_information(modules: list[list[bool | None]], version: int, mask: int) -> None:
    """Draw the level and the mask twice, and the version of larger codes."""
    size = len(modules)
    word = _with_check(_LEVEL << 3 | mask, 10, 0x537) ^ 0x5412
    around = [*((at, 8) for at in (0, 1, 2, 3, 4, 5, 7, 8)), *((8, at) for at in (7, 5, 4, 3, 2, 1, 0))]
    apart = [*((8, size - 1 - at) for at in range(8)), *((size - 7 + at, 8) for at in range(7))]
    for places in (around, apart):
        for shift, (row, column) in enumerate(places):
            modules[row][column] = bool(word >> shift & 1)
    modules[size - 8][8] = True
    if version >= 7:
        word = _with_check(version, 12, 0x1F25)
        for shift in range(18):
            row, column = shift // 3, size - 11 + shift % 3
            modules[row][column] = modules[column][row] = bool(word >> shift & 1)


def _with_check(value: int, bits: int, generator: int) -> int:
    """Return a value with the remainder of its BCH code."""
    rest = value << bits
    while rest.bit_length() > bits:
        rest ^= generator << rest.bit_length() - bits - 1
    return value << bits | rest


def _penalty(modules: Matrix) -> int:
    """Return how hard a code is to read: runs, blocks, false finder patterns, and too much of one color."""
    columns = [list(column) for column in zip(*modules, strict=True)]
    score = 0
    for line in (*modules, *columns):
        length = 1
        for one, other in pairwise([*line, None]):
            length, ended = (length + 1, 0) if one == other else (1, length)
            score += ended - 2 if ended >= 5 else 0
        score += 40 * sum(tuple(line[at : at + 11]) in _FINDER_LIKE for at in range(len(line) - 10))
    for upper, lower in pairwise(modules):
        for at in range(len(upper) - 1):
            score += 3 * (upper[at] == upper[at + 1] == lower[at] == lower[at + 1])
    share = 100 * sum(map(sum, modules)) / len(modules) ** 2
    return score + 10 * int(abs(share - 50) // 5)
