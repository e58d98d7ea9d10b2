"""Relay of a host-protocol request to a daemon, which answers it while this process waits."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

import msgspec

from zot.client.blocking import CallRefused, DaemonLine
from zot.client.endpoint import Patience
from zot.config.paths import DaemonPaths
from zot.encoding import thread_safe_type
from zot.errors import ConfigError
from zot.wire.host import Request, Response
from zot.wire.jsonrpc import STOPPING

#: The time for a starting daemon to listen and to greet. A slower one counts as none.
_GREETING_S = 2.0
#: Attempts, if one daemon after the other stops, and the time for the next one to greet, which may have to wait for the
#: end of its predecessor.
_DAEMONS = 3
_NEXT_S = 5.0
#: The time to confirm that the answer was delivered.
_CONFIRM_S = 1.0
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
        "help",
    }
)
_VARIABLE = "ZOT_HOST_VIA_DAEMON"


class RelayAnswered(msgspec.Struct, frozen=True):
    """The daemon's answer, and its exit code."""

    response: Response
    code: int = 0


def is_wanted(given: Mapping[str, object], env: Mapping[str, str]) -> bool:
    """True if requests are to be relayed. Raise ConfigError for flags that exclude it.

    The variable is for command lines of other programs: flags that a daemon would ignore disable it.
    """
    if not given.get("via_daemon"):
        return env.get(_VARIABLE) == "1" and not _daemon_flags(given)
    if foreign := _daemon_flags(given):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ConfigError(f"{names}: with --via-daemon, what the daemon was started with counts, and config.toml")
    return True


class Relay:
    """One request relayed through the daemon at ``place``. ``began`` starts its deadline."""

    def __init__(self, place: DaemonPaths, request: Request, began: float) -> None:
        #: The request to run here without an answer; once relayed, it has a key, so that it can be resumed.
        self.request = request
        self._place = place
        self._began = began
        self._line: DaemonLine | None = None
        #: The requests of the session that preceded this one at a daemon that stopped; the next one keeps the order.
        self.ahead = 0

    def answer(self) -> RelayAnswered | None:
        """Return the daemon's answer, without a time limit; None if there will be none.

        If the daemon stops before it has answered, ask its successor, which takes over at once if there is one.
        """
        for patience_s in (_GREETING_S, *[_NEXT_S] * (_DAEMONS - 1)):
            try:
                return self._ask(patience_s)
            except CallRefused as problem:
                if (ahead := _requests_ahead(problem)) is None:
                    return None
                self.ahead = ahead
            except (OSError, msgspec.ValidationError):
                return None
            if self._line is not None:
                self._line.close()  # The daemon's end waits for this connection's.
        return None

    def _ask(self, patience_s: float) -> RelayAnswered:
        """Relay the request to the current daemon. Raise OSError, Refused, ValidationError."""
        path = self._place.socket
        self._line = DaemonLine(path, within_s=patience_s, patience=Patience(path, starting_s=patience_s))
        self.request = _with_key(self.request)
        given = {name: value for name, value in msgspec.to_builtins(self.request).items() if value is not None}
        given["ageMs"] = max(0.0, time.monotonic() - self._began) * 1000
        if self.ahead:
            given["ahead"] = self.ahead
        return msgspec.convert(
            self._line.ask("host/respond", given, within_s=math.inf), thread_safe_type(RelayAnswered)
        )

    def delivered(self) -> None:
        """Confirm that the answer was delivered. Unconfirmed, the daemon only keeps the answer for longer."""
        assert self._line is not None
        try:
            self._line.tell("host/delivered", {"requestId": self.request.ids.request_id}, within_s=_CONFIRM_S)
        except OSError:
            return


def daemon_settings(place: DaemonPaths) -> dict[str, str]:
    """Return the settings that run a request here as the daemon would: with its files and journal."""
    named = {"config_dir": place.config_dir, "journal": place.journal}
    return {name: value for name, value in named.items() if value is not None}


def _daemon_flags(given: Mapping[str, object]) -> list[str]:
    """Return the flags that only the daemon could apply."""
    many = ["single_request"] if given.get("single_request") == "false" else []
    return [name for name in given if name not in _RELAY_FLAGS] + many


def _requests_ahead(problem: CallRefused) -> int | None:
    """Return the number of preceding requests at a daemon that stops before answering; None if it refuses."""
    if problem.code != STOPPING:
        return None
    ahead = problem.data.get("ahead") if isinstance(problem.data, dict) else None
    return ahead if isinstance(ahead, int) else 0


def _with_key(request: Request) -> Request:
    """Return the request with an idempotency key, so that another process can resume it."""
    if request.key is not None:
        return request
    return msgspec.structs.replace(request, idempotency_key=f"relayed:{os.urandom(16).hex()}")
