"""Reading one host request from standard input without an event loop."""

from __future__ import annotations

import os
import select
import time

from zot.errors import AgentError
from zot.serve.stdio import readable
from zot.wire.host import Ids, Refused
from zot.wire.lines import LineSplitter, TooLong

_READ_BYTES = 64 * 1024
#: How long to read and discard input after a refusal, so that its writer gets to read the answer; and the silence
#: that ends this early.
_DRAIN_S = 1.0
_SILENCE_S = 0.05

#: No start takes longer: an older process was another program first and then executed zot.
_MAX_AGE_S = 10.0
_loaded = time.monotonic()


class InputInterrupted(AgentError):
    """A signal arrived before the request."""


class Abandoned(AgentError):
    """The reader of the answer has closed the output."""


def read_request(incoming: int, signals: int, outgoing: int, *, limit: int, patience_s: float) -> bytes:
    """Return the first non-empty line. The rest of the input stays unread.

    Raise Refused if there is none, or if it is too long or too late; InputInterrupted if ``signals`` becomes readable
    first; Abandoned if ``outgoing`` is closed at its other end.
    """
    lines, deadline = LineSplitter(max_line_bytes=limit), time.monotonic() + patience_s
    while True:
        data = _next(incoming, signals, outgoing, deadline)
        if data is None:
            begun = ", only a part of one: a line feed ends it" if lines.unread() else ""
            raise Refused(f"no request within {patience_s:g} s{begun}", Ids())
        for line in lines.feed(data) if data else lines.finish():
            if isinstance(line, TooLong):
                raise Refused(f"the request is longer than {line.limit} bytes", Ids(), goes_on=True)
            return line
        if not data:
            raise Refused("there is no request: the input is empty", Ids())


def drain(incoming: int) -> None:
    """Read and discard input for a moment: a writer that blocks on it would not read the answer."""
    deadline = time.monotonic() + _DRAIN_S
    poll = select.poll()
    poll.register(incoming, select.POLLIN)
    while time.monotonic() < deadline and poll.poll(_SILENCE_S * 1000):
        try:
            if not os.read(incoming, _READ_BYTES):
                return
        except BlockingIOError:
            continue
        except OSError:
            return


def _next(incoming: int, signals: int, outgoing: int, deadline: float) -> bytes | None:
    """Return the next chunk, b"" at the end of the input, None at the deadline. Raise InputInterrupted, Abandoned."""
    poll = select.poll()
    poll.register(incoming, select.POLLIN)
    poll.register(signals, select.POLLIN)
    poll.register(outgoing, 0)
    while (left_s := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(left_s * 1000))
        # poll() returns on the first ready descriptor: a signal may have arrived since.
        if signals in ready or readable(signals):
            raise InputInterrupted("a signal came before the request")
        if outgoing in ready:
            raise Abandoned("the reader of the answer has gone")
        if incoming in ready:
            try:
                return os.read(incoming, _READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as problem:
                raise Refused(f"the input cannot be read: {problem.strerror}", Ids()) from None
    return None


def process_began() -> float:
    """Return when this process began, on the clock of `time.monotonic`.

    Taken from /proc (precise to 10 ms on Linux); without it, the time at which this module was loaded.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            # The second field is the program's name in brackets, which may contain anything.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return _loaded
    return time.monotonic() - age_s if 0 <= age_s <= _MAX_AGE_S else _loaded
