"""Relay of a host-protocol request to a daemon, which answers it while this process waits."""

from __future__ import annotations

import math
import os
import time

import msgspec

from zot.client.calls import BlockingConnection, CallRefused
from zot.client.endpoint import Patience
from zot.config.paths import DaemonPaths
from zot.encoding import thread_safe_type
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


class RelayAnswered(msgspec.Struct, frozen=True):
    """The daemon's answer, and its exit code."""

    response: Response
    code: int = 0


class Relay:
    """One request relayed through the daemon at ``place``. ``began`` starts its deadline."""

    def __init__(self, place: DaemonPaths, request: Request, began: float) -> None:
        #: The request to run here without an answer; once relayed, it has a key, so that it can be resumed.
        self.request = request
        self._place = place
        self._began = began
        self._line: BlockingConnection | None = None
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
        """Relay the request to the current daemon. Raise OSError, CallRefused; fail also if the answer is invalid."""
        path = self._place.socket
        self._line = BlockingConnection(path, within_s=patience_s, patience=Patience(path, starting_s=patience_s))
        self.request = _with_key(self.request)
        given = {name: value for name, value in msgspec.to_builtins(self.request).items() if value is not None}
        given["ageMs"] = max(0.0, time.monotonic() - self._began) * 1000
        if self.ahead:
            given["ahead"] = self.ahead
        return msgspec.convert(
            self._line.call("host/respond", given, within_s=math.inf), thread_safe_type(RelayAnswered)
        )

    def delivered(self) -> None:
        """Confirm that the answer was delivered. Unconfirmed, the daemon only keeps the answer for longer."""
        assert self._line is not None
        try:
            self._line.send("host/delivered", {"requestId": self.request.ids.request_id}, within_s=_CONFIRM_S)
        except OSError:
            return


def daemon_settings(place: DaemonPaths) -> dict[str, str]:
    """Return the settings that run a request here as the daemon would: with its files and journal."""
    named = {"config_dir": place.config_dir, "journal": place.journal}
    return {name: value for name, value in named.items() if value is not None}


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
