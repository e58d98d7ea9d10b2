"""The cost of the journal, measured in-process: a program that prints its figures as JSON, in seconds."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from zot.config.config import Config
from zot.events import TextDelta
from zot.journal.journal import Journal
from zot.journal.record import Record
from zot.messages import CallBlock, Message, ResultBlock, TextBlock
from zot.sdk.runtime import Runtime
from zot.store import Change, MemoryStore, MessageAdded, Store

_MESSAGES = 2000
_BATCHES = 2000
_BATCH = [TextDelta(f"word {number} ") for number in range(32)]
_PAUSED = 300
_FLOOD = 50_000


async def main() -> None:
    """Measure once."""
    with tempfile.TemporaryDirectory(prefix="zot-bench-") as directory:
        journal = await Journal.open(f"{directory}/journal.db")
        figures: dict[str, Any] = await _reopening(journal)
        figures["memory"] = await _appending(MemoryStore())
        record = await _begun(journal, "appending")
        figures["journal"] = await _appending(record)
        figures["latencies"] = await _latencies(record)
        await _flood(Config(provider="lab"))  # the first pays for the imports
        pairs = [
            (
                await _flood(Config(provider="lab")),
                await _flood(Config(provider="lab", session=f"flood {number}", journal=journal.path)),
            )
            for number in range(3)
        ]
        figures["agent, memory"], figures["agent, journal"] = map(min, zip(*pairs, strict=True))
        await journal.close()
    sys.stdout.write(json.dumps(figures))


async def _begun(journal: Journal, name: str) -> Record:
    record = await journal.record(name)
    await record.begin()
    return record


async def _reopening(journal: Journal) -> dict[str, Any]:
    """A session of 2,000 messages, as a transcript, against the same bytes in a file of lines."""
    rows = [MessageAdded(_message(number)) for number in range(_MESSAGES)]
    record = await _begun(journal, "long")
    for number, row in enumerate(rows):
        record.append([row, *_BATCH], run=number // 6 + 1)
        await record.settled()
    record.end()
    lines = Path(journal.path).with_name("lines")
    lines.write_bytes(msgspec.json.Encoder().encode_lines(rows))
    decoder = msgspec.json.Decoder(Change)
    decoder.decode_lines(lines.read_bytes())
    opening, reading = [], []
    for _ in range(15):
        start = perf_counter()
        decoder.decode_lines(lines.read_bytes())
        reading.append(perf_counter() - start)
        start = perf_counter()
        _, past = await journal.resume("long")
        opening.append(perf_counter() - start)
        assert len(past.changes) == _MESSAGES
    return {"reopen": min(opening), "decode": min(reading)}


def _message(number: int) -> Message:
    text = TextBlock(f"This is what somebody said in message {number}. " * 12)
    match number % 3:
        case 0:
            return Message("user", (text,), "2026-01-01T12:00:00.000Z")
        case 1:
            call = CallBlock(f"c{number}", "bash", {"command": "ls -l"})
            return Message("assistant", (text, call), "2026-01-01T12:00:00.000Z")
        case _:
            return Message("tool", (ResultBlock(f"c{number - 1}", False, (text,)),), "2026-01-01T12:00:00.000Z")


async def _appending(store: Store) -> float:
    """Deltas, a batch a tick."""
    start = perf_counter()
    for _ in range(_BATCHES):
        store.append(_BATCH, run=1)
        await asyncio.sleep(0)
        if store.full:
            await store.room()
    await store.settled()
    return perf_counter() - start


async def _latencies(record: Record) -> list[float]:
    """From `append` to its commit, on an idle journal."""
    found = []
    for _ in range(_PAUSED):
        start = perf_counter()
        record.append(_BATCH[:1], run=1)
        await record.settled()
        found.append(perf_counter() - start)
    return found


async def _flood(config: Config) -> float:
    """The whole agent, a model that never pauses, no subscriber."""
    async with Runtime(config) as runtime:
        session = runtime._session  # Private: a prompt of the Runtime would have a subscriber.
        assert session is not None
        start = perf_counter()
        session.prompt(f"!flood {_FLOOD}")
        await getattr(session, "worker", session).finish()  # In earlier checkouts it is a method of the session.
        elapsed = perf_counter() - start
        assert session.store.last_seq > _FLOOD
    return elapsed


if __name__ == "__main__":
    asyncio.run(main())
