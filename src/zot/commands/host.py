"""`zot host`: host protocol v1. Every request gets exactly one answer, errors included."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, Config, ignore_foreign, resolve
from zot.errors import AgentError, ConfigError, SystemFailed
from zot.serve.host.single import Abandoned, InputInterrupted, drain, process_began, read_request
from zot.serve.host.watchdog import Signals, Slot, Watchdog
from zot.serve.stdio import claim, leave, unblock_signals, write_all, write_within
from zot.wire.host import (
    BAD_INPUT,
    FAILED,
    MAX_INPUT_BYTES,
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

if TYPE_CHECKING:
    pass


def _patience(text: str) -> float:
    """Parse a number of seconds; 0 is allowed."""
    seconds = float(text)
    if not 0 <= seconds <= flags.MAX_SECONDS:
        raise ValueError(f"must be at least 0 and at most {flags.MAX_SECONDS}")
    return seconds


_HOST_FLAGS = (
    flags.Flag("--single-request", "one request, one answer, and the end; `false` serves many (true)", value="BOOL",
               parse=flags.choice("true", "false")),
    flags.Flag("--bridge-compat", "the flat answer, which is the only one there is", value="BOOL",
               parse=flags.choice("true", "false")),
    flags.Flag("--protocol", "the version of the protocol; there is v1", value="NAME"),
    flags.Flag("--max-input-bytes", "longest request that is read (1 MiB)", value="N", parse=flags.positive),
    flags.Flag("--max-line-bytes", "the same", value="N", parse=flags.positive, setting="max_input_bytes"),
    flags.Flag("--stdin-timeout-ms", "how long the request may take to come (15000)", value="MS", parse=flags.positive),
    flags.Flag("--exit-zero", "exit code 0 whenever an answer was written"),
    flags.Flag("--idempotency-ttl", "how long an answer that got out is given again for the same key (60)",
               value="SECONDS", parse=_patience),
    flags.Flag("--max-concurrency", "how many requests run at a time, with --single-request false (8)", value="N",
               parse=flags.positive),
    flags.Flag("--events", "tell every event before the answer, with --single-request false"),
    flags.Flag("--via-daemon", "let a running daemon answer, and only wait; without one, answer as usual"),
    flags.Flag("--self-test", "look if a request could be answered, without asking a model"),
)  # fmt: skip
_OWN = frozenset(flag.key for flag in _HOST_FLAGS)
#: Not flags here: the request names its session and agent.
_FLAGS = (*_HOST_FLAGS, *(flag for flag in AGENT_FLAGS if flag.key not in ("session", "no_session", "agent")))
_SUMMARY = """\
Answer one request, a JSON object on standard input, with one JSON object on standard output: host protocol v1.
The exit code is 0 for an answer to a request that ran, 2 for bad input, 3 for a bad set-up, 4 if zot failed."""
#: Flags that mean `true` without a value.
_BARE = ("--single-request", "--bridge-compat")

_STDIN_TIMEOUT_MS = 15_000
#: The shortest deadline of a request, so that there is time for an answer.
_MIN_DEADLINE_S = 0.15
#: Time limits for writing: of an answer without a deadline, and of the watchdog's last answer.
_WRITE_S = 5.0
_LAST_WRITE_S = 0.4


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    host = Host(argv)
    if host.own.get("help"):
        unblock_signals()
        if sys.stdout is not None:
            sys.stdout.write(flags.usage("zot host", _SUMMARY, _FLAGS) + "\n")
        return 0
    try:
        host.incoming, host.outgoing = claim()  # First: a descriptor opened earlier could become a standard stream.
        if "--self-test" in argv:  # Also if other flags are wrong: the report says so.
            unblock_signals()
            return host.test()

        signals = Signals()
        if host.serves_many:
            from zot.commands.host_serve import answer_many  # Imported lazily: as in `_run`.

            answer_many(host, signals)
        host.answer_one(signals)
    except Exception as problem:  # the outermost boundary: every failure must be answered
        host.fail(problem)


class Host:
    """The parsed flags and the descriptors. ``problem`` is the error in the flags."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.incoming = self.outgoing = -1
        self.began = process_began()
        self._slot: Slot | None = None
        self.own: dict[str, Any] = {}
        self.settings: dict[str, Any] = {}
        self.problem: ConfigError | None = None
        self._exit_zero = "--exit-zero" in argv
        self._is_mute = sys.stdout is None
        self._relays = False
        self.has_requests_ahead = False
        try:
            given, words = flags.parse(_spelled_out(argv), (*_FLAGS, *FOREIGN_FLAGS, flags.HELP))
            ignore_foreign(given, words, "requests are read from standard input")
            self.own = {name: value for name, value in given.items() if name in _OWN or name == "help"}
            self.settings = {name: value for name, value in given.items() if name not in self.own}
            if self.own.get("events") and self.own.get("single_request") != "false":
                raise ConfigError("--events needs --single-request false: one request has one line of output")
            if "via_daemon" in given or "ZOT_HOST_VIA_DAEMON" in os.environ:
                from zot.serve.host.relay import is_wanted  # Imported lazily: only `--via-daemon` needs it.

                self._relays = is_wanted(given, os.environ)
        except ConfigError as problem:
            self.problem = problem

    @property
    def serves_many(self) -> bool:
        """True if more than one request may arrive. Errors in the flags are answered to a single one."""
        is_single = self.own.get("single_request") != "false"
        return not is_single and self.problem is None and self.own.get("protocol", PROTOCOL) == PROTOCOL

    # One request.

    def answer_one(self, signals: Signals) -> NoReturn:
        """Read one request, answer it, and exit."""
        request = self._read(signals)
        if self.own.get("protocol", PROTOCOL) != PROTOCOL:
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
                limit=self.own.get("max_input_bytes", MAX_INPUT_BYTES),
                patience_s=self.own.get("stdin_timeout_ms", _STDIN_TIMEOUT_MS) / 1000,
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
        watchdog = Watchdog(signals, (self.incoming, self.outgoing), self._answer_soon, stays=False, leave=self.leave)
        self._slot = slot
        watchdog.guard(slot)
        watchdog.start()
        try:
            if self._relays:
                request = self._relay(request, slot)
            config = self.config_of(request.agent_name)
        except AgentError as problem:
            self._conclude(slot, request.ids.failure(code_of(problem), str(problem)), NOT_SET_UP)
        # Imported lazily: requests that are answered without a session come first.
        from zot.commands.host_serve import run_request

        run_request(self, request, config, slot, watchdog)

    def _relay(self, request: Request, slot: Slot) -> Request:
        """Let a daemon answer. Without one, or if it does not finish, return the request to run here."""
        # Imported lazily: only `--via-daemon` needs them.
        from zot.config.paths import locate
        from zot.serve.host.relay import Relay, daemon_settings

        try:
            place = locate(os.environ, config_dir=self.settings.get("config_dir"))
        except ConfigError:
            return request  # There can be no daemon.
        relay = Relay(place, request, self.began)
        answered = relay.answer()
        if answered is None:
            self.settings.update(daemon_settings(place))
            self.has_requests_ahead = relay.ahead > 0
            return relay.request
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
            self._write_or_fail(ids.failure("INTERNAL", message), FAILED)
        if isinstance(problem, OSError):
            sys.stderr.write(f"zot: {SystemFailed.of(problem)}\n")
        else:
            sys.excepthook(type(problem), problem, problem.__traceback__)
        self.leave(FAILED)

    # Shared.

    def config_of(self, agent: str) -> Config:
        """Return the config for a request to ``agent``. Raise ConfigError or UserError if it cannot work."""
        from zot.runtime.check import check  # Imported lazily: bad input is answered without it.

        if self.problem is not None:
            raise self.problem
        config = resolve({**self.settings, "agent": agent}, or_default=True)
        check(config)
        return config

    def _refuse(self, problem: Refused) -> NoReturn:
        """Answer an invalid request."""
        code = self._write_or_fail(problem.ids.failure("INVALID_REQUEST", str(problem)), BAD_INPUT)
        if problem.goes_on:
            drain(self.incoming)
        self.leave(code)

    def _respond(self, response: Response, code: int) -> NoReturn:
        self.leave(self._write_or_fail(response, code))

    def answer(self, slot: Slot, response: Response, code: int, within_s: float | None = None) -> int:
        """Write the answer of a taken slot; return the exit code. The watchdog ends the process if that hangs."""
        outcome = FAILED
        try:
            outcome = self._write_or_fail(response, code, within_s)
        finally:
            slot.written(outcome)
        return outcome

    def _answer_soon(self, slot: Slot, response: Response, code: int) -> None:
        """Answer for the watchdog, with a time limit, since nothing would end it."""
        self.answer(slot, response, code, _LAST_WRITE_S)

    def _write_or_fail(self, response: Response, code: int, within_s: float | None = _WRITE_S) -> int:
        """Write an answer; return ``code``, or another exit code if it could not be written."""
        data = encode_response(response)
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

    # Self-test.

    def test(self) -> int:
        """Report whether a request could be answered; return the exit code."""

        from zot.commands.host_self_test import examine  # Imported lazily: only `--self-test` needs it.

        report = examine(self.problem, self.settings)
        try:
            write_within(self.outgoing, msgspec.json.encode(report) + b"\n", _WRITE_S)
        except OSError as problem:
            return self.unwritten(problem)
        return 0 if report.ok or self._exit_zero else NOT_SET_UP


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """Return the words with every flag of _BARE as `FLAG=VALUE`."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in _BARE and not word.startswith("-"):  # There are no other words.
            words[-1] += f"={word}"
        else:
            words.append(word)
    return [f"{word}=true" if word in _BARE else word for word in words]
