"""The process of `zot host`: reads one request without an event loop, answers it, and exits.

Light, because bad input is answered before asyncio and the modules of a session are loaded.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from zot.config.config import Config, resolve
from zot.errors import AgentError, ConfigError, SystemFailed
from zot.serve.host.watchdog import Signals, Slot, Watchdog
from zot.serve.stdio import claim, leave, readable, write_all, write_within
from zot.wire.host import (
    BAD_INPUT,
    FAILED,
    NOT_SET_UP,
    PROTOCOL,
    Ids,
    Refused,
    Request,
    Response,
    code_of,
    decode_request,
    encode_response,
)
from zot.wire.lines import LineSplitter, TooLong

if TYPE_CHECKING:
    from zot.serve.host.relay import Relay

_READ_BYTES = 64 * 1024
#: How long to read and discard input after a refusal, so that its writer gets to read the answer; and the silence
#: that ends this early.
_DRAIN_S = 1.0
_SILENCE_S = 0.05

#: The shortest deadline of a request, so that there is time for an answer.
_MIN_DEADLINE_S = 0.15
#: Time limits for writing: of an answer without a deadline, and of the watchdog's last answer.
_WRITE_S = 5.0
_LAST_WRITE_S = 0.4
#: No start takes longer: an older process was another program first and then executed zot.
_MAX_AGE_S = 10.0
_loaded = time.monotonic()


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings from the flags. ``problem`` is the error in them, ``agent`` the settings of the agents."""

    agent: Mapping[str, Any]
    problem: ConfigError | None
    protocol: str
    is_single: bool
    max_input_bytes: int
    stdin_timeout_s: float
    #: How long a delivered answer is repeated for the same key; None for the usual time.
    ttl_s: float | None
    at_once: int
    sends_events: bool
    relays: bool
    exit_zero: bool

    @property
    def serves_many(self) -> bool:
        """True if more than one request may arrive. Errors in the flags are answered to a single one."""
        return not self.is_single and self.problem is None and self.protocol == PROTOCOL


class HostProcess:
    """The process: its standard streams, its answer, and its exit code. Guarded by a watchdog (`WatchedServer`)."""

    stays = False

    def __init__(self, settings: HostSettings) -> None:
        self.settings = settings
        self.incoming = self.outgoing = -1
        self.began = process_began()
        self._slot: Slot | None = None
        self._agent = {**settings.agent}
        self._exit_zero = settings.exit_zero
        self._is_mute = sys.stdout is None

    def claim_streams(self) -> None:
        """Take standard input and output."""
        self.incoming, self.outgoing = claim()

    # One request.

    def answer_one(self, signals: Signals) -> NoReturn:
        """Read one request, answer it, and exit."""
        request = self._read(signals)
        if self.settings.protocol != PROTOCOL:
            self._refuse(Refused(f"--protocol must be {PROTOCOL}", request.ids))
        match request.type or "run":
            case "ping":
                self._respond(request.ids.success("pong"), 0)
            case "session_close":
                self._respond(request.ids.success("closed"), 0)
            case "cancel":
                self._refuse(Refused(f"no request {request.target!r} is running", request.ids))
            case _:
                self._run(request, signals)

    def _read(self, signals: Signals) -> Request:
        try:
            line = read_request(
                self.incoming,
                signals.incoming,
                self.outgoing,
                limit=self.settings.max_input_bytes,
                patience_s=self.settings.stdin_timeout_s,
            )
            return decode_request(line)
        except Refused as problem:
            self._refuse(problem)
        except Abandoned:
            leave(FAILED)
        except InputInterrupted:
            name = signals.taken()
            self._respond(Ids().failure("INTERNAL", f"zot was ended by {name} before there was a request"), BAD_INPUT)

    def _run(self, request: Request, signals: Signals) -> NoReturn:
        """Answer a request, or let the watchdog do it."""
        slot = Slot(request.ids, self.began + max(request.timeout_s, _MIN_DEADLINE_S))
        self._slot = slot
        watchdog = Watchdog(signals, (self.incoming, self.outgoing))
        watchdog.guard(slot)
        watchdog.start(self)
        has_requests_ahead = False
        try:
            if self.settings.relays and (relay := self._relayed(request, slot)) is not None:
                request, has_requests_ahead = relay.request, relay.ahead > 0
            config = self.config_of(request.agent_name)
        except AgentError as problem:
            self._conclude(slot, request.ids.failure(code_of(problem), str(problem)), NOT_SET_UP)
        # Imported lazily: requests that are answered without a session come first.
        from zot.serve.host.requests import answer_single

        answer_single(self, request, config, slot, has_requests_ahead=has_requests_ahead)

    def _relayed(self, request: Request, slot: Slot) -> Relay | None:
        """Let a daemon answer, and exit. If it does not finish, return the relay: its request is to run here."""
        # Imported lazily: only `--via-daemon` needs them.
        from zot.config.paths import locate
        from zot.serve.host.relay import Relay, daemon_settings

        try:
            place = locate(os.environ, config_dir=self._agent.get("config_dir"))
        except ConfigError:
            return None  # There can be no daemon: the request runs here as it is.
        relay = Relay(place, request, self.began)
        answered = relay.answer()
        if answered is None:
            self._agent.update(daemon_settings(place))
            return relay
        if not slot.take():
            self._wait_for_the_end()
        code = self.answer(slot, answered.response, answered.code)
        if code != FAILED:
            relay.delivered()
        self.leave(code)

    def _conclude(self, slot: Slot, response: Response, code: int) -> NoReturn:
        """Answer, unless the watchdog did; then it ends the process."""
        if slot.take():
            self.leave(self.answer(slot, response, code))
        self._wait_for_the_end()

    def _wait_for_the_end(self) -> NoReturn:
        """Block until the watchdog, which has answered, ends the process."""
        while True:
            time.sleep(1)

    def fail(self, problem: Exception) -> NoReturn:
        """Answer with an internal error unless already answered, and exit. Imports nothing: that may have failed."""
        slot = self._slot
        if self.outgoing < 0:
            self.outgoing = 1  # `claim` has failed.
        if slot is None or slot.take():
            ids = Ids() if slot is None else slot.ids
            message = f"internal error ({type(problem).__name__}); the log has the details"
            if isinstance(problem, OSError):
                message = str(SystemFailed.of(problem))
            self.write(encode_response(ids.failure("INTERNAL", message)), FAILED)
        if isinstance(problem, OSError):
            sys.stderr.write(f"zot: {SystemFailed.of(problem)}\n")
        else:
            sys.excepthook(type(problem), problem, problem.__traceback__)
        self.leave(FAILED)

    # Shared.

    def config_of(self, agent: str) -> Config:
        """Return the config for a request to ``agent``. Raise ConfigError or UserError if it cannot work."""
        from zot.runtime.check import check  # Imported lazily: bad input is answered without it.

        if self.settings.problem is not None:
            raise self.settings.problem
        config = resolve({**self._agent, "agent": agent}, or_default=True)
        check(config)
        return config

    def _refuse(self, problem: Refused) -> NoReturn:
        """Answer an invalid request."""
        code = self.write(encode_response(problem.ids.failure("INVALID_REQUEST", str(problem))), BAD_INPUT)
        if problem.goes_on:
            drain(self.incoming)
        self.leave(code)

    def _respond(self, response: Response, code: int) -> NoReturn:
        self.leave(self.write(encode_response(response), code))

    def answer(self, slot: Slot, response: Response, code: int, within_s: float | None = None) -> int:
        """Write the answer of a taken slot; return the exit code. The watchdog ends the process if that hangs."""
        outcome = FAILED
        try:
            outcome = self.write(encode_response(response), code, within_s)
        finally:
            slot.written(outcome)
        return outcome

    def answer_late(self, slot: Slot, response: Response, code: int) -> None:
        """Answer for the watchdog, with a time limit, since nothing would end it."""
        self.answer(slot, response, code, _LAST_WRITE_S)

    def kill(self) -> None:
        """Kill the processes of the request's tools, from any thread."""
        if self._slot is not None and self._slot.run is not None:
            self._slot.run.kill()

    def flush(self) -> None:
        """Do nothing: an answer is written at once."""

    def exit(self, codes: Sequence[int | None]) -> NoReturn:
        """Exit after the watchdog's answer."""
        [code] = codes
        if code is None:
            leave(FAILED)
        self.leave(code)

    def write(self, data: bytes, code: int, within_s: float | None = _WRITE_S) -> int:
        """Write to the output; return ``code``, or another exit code if it could not be written."""
        try:
            if within_s is None:
                write_all(self.outgoing, data)
            else:
                write_within(self.outgoing, data, within_s)
        except OSError as problem:
            return self.unwritten(problem)
        return code

    def unwritten(self, problem: OSError) -> int:
        """Report an answer that could not be written; return the exit code."""
        gone = isinstance(problem, BrokenPipeError | ConnectionResetError)
        if not gone:
            sys.stderr.write(f"zot: the answer could not be written: {problem.strerror}\n")
        self._exit_zero = False  # No answer was written.
        return FAILED

    def leave(self, code: int) -> NoReturn:
        """Exit with ``code``, or another one that the flags require."""
        # Do not flush standard error: its lines are written at once, and waiting could block for ever.
        # Without a standard output there was no answer.
        leave(code or FAILED if self._is_mute else 0 if self._exit_zero else code)


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
