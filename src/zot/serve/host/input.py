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
#: How long what nobody will look at is taken in, so that whoever writes it gets to read our answer; and how long a
#: silence there ends that.
_DRAIN_S = 1.0
_SILENCE_S = 0.05


class Interrupted(AgentError):
    """A signal came before the request."""


class Abandoned(AgentError):
    """Nobody is there any more who could read an answer."""


def read_request(incoming: int, signals: int, outgoing: int, *, limit: int, patience_s: float) -> bytes:
    """Return the first line that says something. What follows it is left alone.

    Raise Refused if there is none, or if it is too long or too late; Interrupted if ``signals`` becomes readable first,
    Abandoned if ``outgoing`` is closed at its other end.
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
    """Take in what is still being written, for a moment: a writer that cannot get rid of it does not read, either."""
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
    """Return what comes next, b"" at the end of the input, None at the deadline. Raise Interrupted, Abandoned."""
    poll = select.poll()
    poll.register(incoming, select.POLLIN)
    poll.register(signals, select.POLLIN)
    poll.register(outgoing, 0)
    while (left_s := deadline - time.monotonic()) > 0:
        ready = dict(poll.poll(left_s * 1000))
        # One that came first may be there only now: it is heard when the wait is over.
        if signals in ready or readable(signals):
            raise Interrupted("a signal came before the request")
        if outgoing in ready:
            raise Abandoned("nobody reads the answer")
        if incoming in ready:
            try:
                return os.read(incoming, _READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as problem:
                raise Refused(f"the input cannot be read: {problem.strerror}", Ids()) from None
    return None


#: Nothing takes so long to start: a process that is older was another program before, which then became us.
_MAX_AGE_S = 10.0
_loaded = time.monotonic()


def process_began() -> float:
    """Return when this process began, on the clock of `time.monotonic`.

    As the system says (Linux tells it to the hundredth of a second); else as well as we know: when we were loaded.
    """
    try:
        with open("/proc/self/stat", "rb") as file:
            # The name comes second, in brackets, and may itself contain anything.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return _loaded
    return time.monotonic() - age_s if 0 <= age_s <= _MAX_AGE_S else _loaded
