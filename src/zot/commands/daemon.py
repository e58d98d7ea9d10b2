"""`zot daemon`: start a daemon, or dispatch to status, stop, logs, audit and token."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, ignore_foreign, zot_home
from zot.config.configured_agents import AgentConfigs
from zot.config.file import DaemonSettings, Tls, checked_listen_address
from zot.config.paths import locate
from zot.errors import DaemonRunning, ExtraMissing, UsageError
from zot.serve.stdio import leave, leave_on_signals
from zot.text import printable
from zot.wire.lines import MAX_LINE_BYTES

_OWN_FLAGS = (
    *flags.PLACE_FLAGS,
    flags.Flag("--listen", "Also serve WebSocket and HTTP at this address, such as ws://127.0.0.1:7777.", value="URL",
               many=True, group="Endpoint"),
    flags.Flag("--tls-cert", "Use this certificate chain for wss://.", value="FILE", group="Endpoint", advanced=True),
    flags.Flag("--tls-key", "Use this private key, unless it is in the certificate's file.", value="FILE",
               group="Endpoint", advanced=True),
    flags.Flag("--ephemeral", "Exit one second after the last client has disconnected.", group="Endpoint"),
    flags.Flag("--replace", "Take over from the running daemon without refusing clients.", group="Endpoint"),
    flags.Flag("--pool", "With --store: send prompts to this pool of workers (default: default).", value="NAME",
               group="Endpoint", advanced=True),
    flags.MAX_LINE_FLAG,
)  # fmt: skip
_OWN = frozenset(flag.key for flag in _OWN_FLAGS)
#: Not flags of the daemon: its clients choose session, directory and agent.
_CLIENTS = ("--session", "--no-session", "--cwd", "--agent", *(flag.name for flag in _OWN_FLAGS))
MANUAL = flags.Manual(
    "zot daemon",
    """\
Serve many sessions to many clients: JSON-RPC 2.0, one object per line, on a local socket.
Manage the running daemon with: zot daemon status, stop, logs, audit, token.""",
    (*_OWN_FLAGS, *(flag for flag in AGENT_FLAGS if flag.name not in _CLIENTS)),
    FOREIGN_FLAGS,
    (
        ("zot daemon --provider lab", "Serve the scripted model on the default socket."),
        ("zot daemon --listen ws://127.0.0.1:7777", "Also serve WebSocket clients on this machine."),
    ),
    {
        0: "A signal or `zot daemon stop` ended it.",
        1: "It could not start, or could not record sessions any more.",
        2: "Wrong usage.",
        3: "Another daemon serves this socket.",
    },
)
#: Exit code if another daemon has the endpoint.
_TAKEN = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if argv and not argv[0].startswith("-"):
        from zot.commands.daemon_manage import GROUP  # Imported lazily: a daemon does not need it.

        return GROUP.main(argv)
    if (parsed := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = parsed
    if words:
        raise UsageError(
            f"zot daemon takes no word after its flags: {words[0]!r}; a subcommand comes first: zot daemon status"
        )
    ignore_foreign(settings)
    own = {name: value for name, value in settings.items() if name in _OWN}
    place = locate(os.environ, socket=own.get("socket"), config_dir=own.get("config_dir"))
    gc.disable()  # Modules loaded until it listens are no garbage.
    from zot.serve.daemon.claim import claim_addresses  # Imported lazily: subcommands do not need it.

    leave_on_signals()
    agents = AgentConfigs.load(place.config_dir or zot_home(os.environ))
    listens = listen_addresses(own, agents.file.daemon)
    if place.config_dir is not None and not os.path.isdir(place.config_dir):  # Clients that start one rely on this.
        sys.stderr.write(f"zot: {printable(place.config_dir)} does not exist; zot creates it, and the defaults apply\n")
    try:
        claim = claim_addresses(place, listens, replaces=bool(own.get("replace")))
    except DaemonRunning as problem:
        sys.stderr.write(f"zot: {problem}\n")
        return _TAKEN

    from zot.serve.daemon.daemon_process import (
        serve,  # Imported lazily: the endpoint is claimed first, since clients wait.
    )

    given = {name: value for name, value in settings.items() if name not in _OWN}
    place = replace(place, socket=claim.path)  # A socket passed by the service manager may be elsewhere.
    limit = own.get("max_line_bytes", MAX_LINE_BYTES)
    serving = serve(
        place,
        agents,
        claim,
        given,
        ephemeral=bool(own.get("ephemeral")),
        listens=listens,
        max_line_bytes=limit,
        worker_pool=own.get("pool", ""),
    )
    leave(asyncio.run(serving))


def listen_addresses(own: Mapping[str, Any], settings: DaemonSettings) -> Sequence[tuple[str, Tls | None]]:
    """Return the addresses besides the socket, each once, with their certificate. Raise ConfigError.

    Reports mistakes before any client connects; the web server is imported later.
    """
    addresses = tuple(dict.fromkeys((*own.get("listen", ()), *settings.listen)))
    if not addresses:
        return ()

    from importlib.util import find_spec  # Imported lazily: only `--listen` needs it.

    if missing := [name for name in ("starlette", "uvicorn", "websockets") if find_spec(name) is None]:
        raise ExtraMissing(f"--listen needs {', '.join(missing)}", "web")
    cert, key = own.get("tls_cert") or settings.tls_cert, own.get("tls_key") or settings.tls_key
    tls = None if cert is None else Tls(cert, key)
    for address in addresses:
        checked_listen_address(address, tls)
    return tuple((address, tls) for address in addresses)
