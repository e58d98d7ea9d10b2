"""A request of the host protocol, handed to a daemon: this process only waits for the answer."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping

import msgspec

from zot.client.call import DaemonLine, Refused
from zot.client.endpoint import Patience
from zot.config.paths import Place
from zot.encoding import learned
from zot.errors import ConfigError
from zot.wire.host import Request, Response

#: How long a daemon may take to listen, once it has begun to start, and to greet us. One that takes longer is none.
_GREETING_S = 2.0
#: How often a request is handed over at most, where one daemon after the other stops, and how long the next one, which
#: may have to wait for the end of the one before, may take to greet us.
_DAEMONS = 3
_NEXT_S = 5.0
#: How long it may take to hear that the answer got out.
_HEARD_S = 1.0
#: What is about the request, its way in and its way out, or says where the daemon is. All else is the daemon's.
_OURS = frozenset(
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


class Answered(msgspec.Struct, frozen=True):
    """What the daemon answers, and the exit code that goes with it."""

    response: Response
    code: int = 0


def is_wanted(given: Mapping[str, object], env: Mapping[str, str]) -> bool:
    """True if requests are to be handed to a daemon. Raise ConfigError if that cannot be with these flags.

    The variable is for command lines that are not ours: with flags that a daemon would know nothing of, it is void.
    """
    if not given.get("via_daemon"):
        return env.get(_VARIABLE) == "1" and not _not_ours(given)
    if foreign := _not_ours(given):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise ConfigError(f"{names}: with --via-daemon, what the daemon was started with counts, and config.toml")
    return True


class Relay:
    """One request on its way through the daemon at ``place``. ``began`` is when its time began to run."""

    def __init__(self, place: Place, request: Request, began: float) -> None:
        #: What is to be run here if there is no answer: once it is handed over, it has a key, so that it goes on.
        self.request = request
        self._place = place
        self._began = began
        self._line: DaemonLine | None = None
        #: How many of the same session were before us when a daemon stopped: whoever answers lets them be so again.
        self.ahead = 0

    def answer(self) -> Answered | None:
        """Return the daemon's answer, however long that takes; None if there will be none.

        Where it stops before it has one, the next one is asked, as it takes over at once if there is one: otherwise
        nobody is there any more.
        """
        for patience_s in (_GREETING_S, *[_NEXT_S] * (_DAEMONS - 1)):
            try:
                return self._ask(patience_s)
            except Refused as problem:
                if (ahead := _given_back(problem)) is None:
                    return None
                self.ahead = ahead
            except (OSError, msgspec.ValidationError):
                return None
            if self._line is not None:
                self._line.close()  # Its end waits for ours.
        return None

    def _ask(self, patience_s: float) -> Answered:
        """Hand the request to who is there now. Raise OSError, Refused, ValidationError."""
        path = self._place.socket
        self._line = DaemonLine(path, within_s=patience_s, patience=Patience(path, starting_s=patience_s))
        self.request = _keyed(self.request)
        given = {name: value for name, value in msgspec.to_builtins(self.request).items() if value is not None}
        given["ageMs"] = max(0.0, time.monotonic() - self._began) * 1000
        if self.ahead:
            given["ahead"] = self.ahead
        return msgspec.convert(self._line.ask("host/respond", given, within_s=math.inf), learned(Answered))

    def delivered(self) -> None:
        """Tell the daemon that the answer got out. If it does not hear it, it only keeps the answer for longer."""
        assert self._line is not None
        try:
            self._line.tell("host/delivered", {"requestId": self.request.ids.request_id}, within_s=_HEARD_S)
        except OSError:
            return


def in_its_place(place: Place) -> dict[str, str]:
    """Return the settings with which a request is run here as the daemon would: with its files, in its journal."""
    named = {"config_dir": place.config_dir, "journal": place.journal}
    return {name: value for name, value in named.items() if value is not None}


def _not_ours(given: Mapping[str, object]) -> list[str]:
    """Return the flags that the daemon would have to hear of."""
    many = ["single_request"] if given.get("single_request") == "false" else []
    return [name for name in given if name not in _OURS] + many


def _given_back(problem: Refused) -> int | None:
    """Return how many were before us at a daemon that stops before it has an answer; None if it refuses to answer."""
    from zot.wire.jsonrpc import STOPPING  # Few need it.

    if problem.code != STOPPING:
        return None
    ahead = problem.data.get("ahead") if isinstance(problem.data, dict) else None
    return ahead if isinstance(ahead, int) else 0


def _keyed(request: Request) -> Request:
    """Return a request that is known again if it is run by somebody else: one without a key gets one of its own."""
    if request.key is not None:
        return request
    return msgspec.structs.replace(request, idempotency_key=f"relayed:{os.urandom(16).hex()}")
