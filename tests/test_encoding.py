"""Types that several threads read for the first time, at the same time."""

from __future__ import annotations

import subprocess
import sys

from harness import PATIENCE_S

#: Each child is a process in which nothing has been read yet. It is let go of as often as a thread can be.
RACES = """
import os, sys, threading
from zot.events import Done, TextDelta
from zot.journal.chunks import pack, unpack
from zot.messages import Message, TextBlock
from zot.store import MessageAdded

message = Message("user", (TextBlock("hello"),), "2026-01-01T12:00:00.000Z")
rows = [[MessageAdded(message)], [TextDelta("a"), Done()]]
chunks = [pack(some, session=1, first=1, run=1)[0][0] for some in rows]
sys.setswitchinterval(1e-6)


def race():
    ready, wrong = threading.Barrier(4), []

    def read(which):
        ready.wait()
        if list(unpack(chunks[which])) != rows[which]:
            wrong.append(which)

    threads = [threading.Thread(target=read, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(len(wrong))


ends = []
for _ in range(40):
    child = os.fork()
    if not child:
        race()
    ends.append(os.waitpid(child, 0)[1])
print(ends.count(0))
"""


def test_what_threads_read_for_the_first_time_at_the_same_time_does_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RACES], capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert (done.stdout, done.stderr) == ("40\n", "")
