"""Processes that crash or fail while using a journal. Run by test_journal_faults.py: `journal_crash.py WHAT PATH`."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from store_watch import StoreWatch
from zot.errors import SessionBusy, StoreFailed
from zot.events import TextDelta
from zot.journal.journal import Journal, can_be_written, open_read_only
from zot.journal.queries import rows_after
from zot.journal.repair import check_contents, check_file

CRASHES = 40
CONTENDERS = 20
PATIENCE_S = 60.0


def say(*words: object) -> None:
    """Write one line atomically."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def fork(body: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Run ``body`` in a child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(body())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def crash(path: str) -> None:
    """Write, and be killed at every append: right after it, on its commit, or a moment later."""
    for crash_number in range(CRASHES):
        os.waitpid(fork(lambda at=crash_number: write_until_killed(path, at)), 0)  # type: ignore[misc]  # a default argument


async def write_until_killed(path: str, at: int) -> None:
    journal = await Journal.open(path)
    record = await journal.record("a")
    await record.begin()
    record.watch(StoreWatch(lambda seq: say("safe", seq), lambda problem: say("failed", problem)))
    for number in range(at // 4 + 1):
        first = record.last_seq + 1
        record.append([TextDelta(f"{seq}") for seq in range(first, first + number % 3 + 1)], run=at)
        if number < at // 4:
            await asyncio.sleep(0) if at % 4 == 0 else await record.settled()
    if at % 4 == 1:
        await record.settled()
    elif at % 4 == 2:
        await asyncio.sleep(0)
    elif at % 4 == 3:
        await asyncio.sleep(0)
        time.sleep(0.0001 * at)
    os.kill(os.getpid(), 9)


def contend(path: str) -> None:
    """Let twenty processes run one session at once; one may. Then each runs until all have."""
    go_read, go = os.pipe()
    heard, tell = os.pipe()
    children = [fork(lambda: contender(path, go_read, tell)) for _ in range(CONTENDERS)]
    os.close(tell)
    lines = b""
    while lines.count(b"\n") < CONTENDERS and (said := os.read(heard, 4096)):
        lines += said
    os.write(1, lines)
    os.write(go, b".")
    for child in children:
        os.waitpid(child, 0)


async def contender(path: str, go: int, tell: int) -> None:
    journal = await Journal.open(path)
    record = await journal.record("a")
    try:
        await record.begin()
    except SessionBusy as problem:
        os.write(tell, f"busy {problem.pid}\n".encode())
    else:
        record.append([TextDelta("first")], run=1)
        await record.settled()
        os.write(tell, f"runs {os.getpid()}\n".encode())
        await asyncio.to_thread(os.read, go, 1)
        record.end()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            await record.begin()
            break
        except SessionBusy:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.005)
    for number in range(5):
        record.append([TextDelta(f"{os.getpid()}.{number}")], run=2)
    await record.settled()
    record.end()
    await journal.close()


def fill(path: str) -> None:
    """Write until the disk is full; then free space and continue."""
    asyncio.run(write_until_full(path))


async def write_until_full(path: str) -> None:
    journal = await Journal.open(path)
    other, record = await journal.record("b"), await journal.record("a")
    await record.begin()
    heard: list[int] = []
    failures: list[StoreFailed] = []
    record.watch(StoreWatch(heard.append, failures.append))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, most))
    try:
        while True:
            record.append([TextDelta("x" * 10_000)], run=1)
            await record.settled()
    except StoreFailed as problem:
        say("failed", problem)
    say("told", failures[0])
    say("safe", heard[-1])
    try:
        record.append([TextDelta("y")], run=1)
    except StoreFailed:
        say("refused")
    record.end()
    try:
        await other.begin()
        other.append([TextDelta("z" * 300_000)], run=1)
        await other.settled()
    except StoreFailed:
        say("refused")
    other.end()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    record, past = await journal.resume("a")
    say("resumed", record.last_seq, len(past.rows))
    await record.begin()
    record.append([TextDelta("z")], run=2)
    await record.settled()
    record.end()
    say("problems", (await journal.reading(check_contents)).problems)
    await journal.close()


def read_only(path: str) -> None:
    """Use a read-only journal."""
    if os.geteuid() == 0:
        import concurrent.futures.thread  # noqa: F401  the user we become may not be able to read Python's files

        os.setuid(65534)
    asyncio.run(write_read_only(path))


async def write_read_only(path: str) -> None:
    try:
        journal = await Journal.open(path)
        record = await journal.record("a")
        await record.begin()
        record.append([TextDelta("x")], run=1)
        await record.settled()
    except StoreFailed as problem:
        say("failed", problem)
    seen = await open_read_only(path)
    sessions = await seen.sessions()
    rows = await seen.reading(rows_after, sessions[0].number, 0, 10)
    say("seen", can_be_written(path), sessions[0].id, len(rows))
    await seen.close()
    say("checked", check_file(path).problems)


if __name__ == "__main__":
    {"crash": crash, "contend": contend, "fill": fill, "read-only": read_only}[sys.argv[1]](sys.argv[2])
