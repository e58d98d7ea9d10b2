"""`zot host`: host protocol v1. Every request gets exactly one answer, errors included."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, ignore_foreign
from zot.errors import ConfigError
from zot.serve.host.single import HostProcess, HostSettings
from zot.serve.host.watchdog import Signals
from zot.serve.stdio import unblock_signals
from zot.wire.host import MAX_INPUT_BYTES, NOT_SET_UP, PROTOCOL


def _patience(text: str) -> float:
    """Parse a number of seconds; 0 is allowed."""
    seconds = float(text)
    if not 0 <= seconds <= flags.MAX_SECONDS:
        raise ValueError(f"must be at least 0 and at most {flags.MAX_SECONDS}")
    return seconds


_HOST_FLAGS = (
    flags.Flag("--single-request", "Answer one request and exit; false serves many (default: true).", value="BOOL",
               parse=flags.choice("true", "false"), group="Requests"),
    flags.Flag("--via-daemon", "Let a running daemon answer; without one, answer as usual.", group="Requests"),
    flags.Flag("--events", "With --single-request false: print every event before the answer.", group="Requests"),
    flags.Flag("--exit-zero", "Exit with 0 whenever an answer was written.", group="Requests"),
    flags.Flag("--self-test", "Check the set-up without calling a model; print a report.", group="Requests"),
    flags.Flag("--idempotency-ttl", "Replay a delivered answer to the same key for this long (default: 60).",
               value="SECONDS", parse=_patience, group="Requests", advanced=True),
    flags.Flag("--max-concurrency", "With --single-request false: run this many requests at a time (default: 8).",
               value="N", parse=flags.positive, group="Requests", advanced=True),
    flags.Flag("--max-input-bytes", "Refuse longer requests (default: 1 MiB).", value="N", parse=flags.positive,
               group="Requests", advanced=True),
    flags.Flag("--max-line-bytes", "Same as --max-input-bytes.", value="N", parse=flags.positive,
               setting="max_input_bytes", group="Requests", advanced=True),
    flags.Flag("--stdin-timeout-ms", "Give up if no request has arrived after this long (default: 15000).", value="MS",
               parse=flags.positive, group="Requests", advanced=True),
    flags.Flag("--protocol", "Require this version of the protocol; only v1 exists.", value="NAME", group="Requests",
               advanced=True),
    flags.Flag("--bridge-compat", "Accepted for compatibility; the answer is always flat.", value="BOOL",
               parse=flags.choice("true", "false"), group="Requests", advanced=True),
)  # fmt: skip
_OWN = frozenset(flag.key for flag in _HOST_FLAGS)
MANUAL = flags.Manual(
    "zot host",
    "Answer one request, a JSON object on standard input, with one JSON object on standard output: host protocol v1.",
    # Not flags here: the request names its session and agent.
    (*_HOST_FLAGS, *(flag for flag in AGENT_FLAGS if flag.key not in ("session", "no_session", "agent"))),
    FOREIGN_FLAGS,
    (
        (
            """echo '{"request_id":"1","session_id":"chat-42","prompt":"!echo Hello"}' | zot host --provider lab""",
            "Answer one chat message with the scripted model.",
        ),
        ("zot host --self-test", "Check keys and settings before a bridge relies on them."),
    ),
    {
        0: "The request ran; `ok` in the answer tells whether it succeeded.",
        2: "The request was invalid.",
        3: "The configuration or the provider could not be set up.",
        4: "zot failed.",
    },
)
#: Flags that mean `true` without a value.
_BARE = ("--single-request", "--bridge-compat")
#: Flags about the request, its input and output, or the daemon's place. All others are the daemon's.
_RELAY_FLAGS = frozenset(
    {
        "via_daemon",
        "config_dir",
        "single_request",
        "bridge_compat",
        "protocol",
        "max_input_bytes",
        "stdin_timeout_ms",
        "exit_zero",
        "self_test",
    }
)
_VARIABLE = "ZOT_HOST_VIA_DAEMON"
_STDIN_TIMEOUT_MS = 15_000
_AT_ONCE = 8


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    settings = _parsed(argv)
    if settings is None:
        unblock_signals()
        return 0
    host = HostProcess(settings)
    try:
        host.claim_streams()  # First: a descriptor opened earlier could become a standard stream.
        if "--self-test" in argv:  # Also if other flags are wrong: the report says so.
            unblock_signals()
            return _self_test(host, settings)
        signals = Signals()
        if settings.serves_many:
            from zot.serve.host.stream import answer_many  # Imported lazily: one request is answered without it.

            answer_many(host, signals)
        host.answer_one(signals)
    except Exception as problem:  # the outermost boundary: every failure must be answered
        host.fail(problem)


def _parsed(argv: Sequence[str]) -> HostSettings | None:
    """Return what the flags say, with the error in them if there is one; None after printing the help."""
    own: dict[str, Any] = {}
    agent: dict[str, Any] = {}
    relays, problem = False, None
    try:
        parsed = flags.parse_or_help(_spelled_out(argv), MANUAL)
        if parsed is None:
            return None
        given, words = parsed
        ignore_foreign(given, words, "zot host takes no words; it reads requests from standard input")
        own = {name: value for name, value in given.items() if name in _OWN}
        agent = {name: value for name, value in given.items() if name not in own}
        if own.get("events") and own.get("single_request") != "false":
            raise ConfigError("--events needs --single-request false: one request has one line of output")
        relays = _is_relayed(given, os.environ)
    except ConfigError as failure:
        problem = failure
    return HostSettings(
        agent=agent,
        problem=problem,
        protocol=own.get("protocol", PROTOCOL),
        is_single=own.get("single_request") != "false",
        max_input_bytes=own.get("max_input_bytes", MAX_INPUT_BYTES),
        stdin_timeout_s=own.get("stdin_timeout_ms", _STDIN_TIMEOUT_MS) / 1000,
        ttl_s=own.get("idempotency_ttl"),
        at_once=own.get("max_concurrency", _AT_ONCE),
        sends_events=bool(own.get("events")),
        relays=relays,
        exit_zero="--exit-zero" in argv,
    )


def _is_relayed(given: Mapping[str, object], env: Mapping[str, str]) -> bool:
    """True if requests are to be relayed. Raise ConfigError for flags that exclude it.

    The variable is for command lines of other programs: flags that a daemon would ignore disable it.
    """
    if not given.get("via_daemon"):
        return env.get(_VARIABLE) == "1" and not _daemon_flags(given)
    if foreign := _daemon_flags(given):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ConfigError(f"{names}: no effect with --via-daemon; the daemon's own flags and config.toml apply")
    return True


def _daemon_flags(given: Mapping[str, object]) -> list[str]:
    """Return the flags that only the daemon could apply."""
    many = ["single_request"] if given.get("single_request") == "false" else []
    return [name for name in given if name not in _RELAY_FLAGS] + many


def _self_test(host: HostProcess, settings: HostSettings) -> int:
    """Report whether a request could be answered; return the exit code."""
    from zot.commands.host_self_test import examine  # Imported lazily: only `--self-test` needs it.

    report = examine(settings.problem, settings.agent)
    return host.write(msgspec.json.encode(report) + b"\n", 0 if report.ok or settings.exit_zero else NOT_SET_UP)


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """Return the words with every flag of _BARE as `FLAG=VALUE`."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in _BARE and not word.startswith("-"):  # There are no other words.
            words[-1] += f"={word}"
        else:
            words.append(word)
    return [f"{word}=true" if word in _BARE else word for word in words]
