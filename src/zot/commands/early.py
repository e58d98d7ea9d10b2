"""Answers `hello` and `ping` before asyncio is imported: most of a cold start is spent on imports."""

from __future__ import annotations

import os

from zot.serve.stdio import readable, writable, write_all
from zot.wire.lines import LineSplitter, TooLong
from zot.wire.rpc_greeting import Greeting, decode_greeting

_READ_BYTES = 64 * 1024


def answer_early(incoming: int, outgoing: int, greeting: Greeting, lines: LineSplitter) -> list[bytes | TooLong]:
    """Answer what is waiting already, as far as it can be answered. Return the lines that are left to others.

    Never waits, neither to read nor to write: nothing is lost by starting up in earnest. The end of the input is
    left to be found by who reads next. What is wrong with a line is also theirs to say.
    """
    left: list[bytes | TooLong] = []
    while not left and readable(incoming):
        data = os.read(incoming, _READ_BYTES)
        if not data:
            break
        left = _answer(lines.feed(data), outgoing, greeting)
    return left


def _answer(lines: list[bytes | TooLong], outgoing: int, greeting: Greeting) -> list[bytes | TooLong]:
    for index, line in enumerate(lines):
        command = None if isinstance(line, TooLong) else decode_greeting(line)
        if command is None or greeting.refusal(command) is not None or not writable(outgoing):
            return lines[index:]
        write_all(outgoing, greeting.answer(command))
    return []
