"""`zot daemon`: many sessions for many clients, over a local socket."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zot import flags
from zot.config import AGENT_FLAGS
from zot.endpoint import Place, locate
from zot.errors import DaemonRunning, UsageError

if TYPE_CHECKING:
    from zot.serve.claim import Claim

_OWN_FLAGS = (
    flags.Flag("--socket", "where to listen, instead of <data_dir>/daemon.sock", value="PATH"),
    flags.Flag("--ephemeral", "end one second after the last client has gone"),
    flags.Flag("--listen", "also at this address, such as ws://127.0.0.1:7777", value="URL", many=True),
    flags.Flag("--replace", "take over from the daemon that runs, without refusing anybody"),
)
#: What a session is, its client says.
_FLAGS = (*_OWN_FLAGS, *(flag for flag in AGENT_FLAGS if flag.name not in ("--session", "--no-session", "--cwd")))
_SUMMARY = """\
Serve many sessions to many clients: JSON-RPC 2.0, one object a line, on a local socket.
zot daemon status, stop and logs tell of the one that runs, and end it."""
_OWN = frozenset(flag.key for flag in _OWN_FLAGS)
_TAKEN = 3
