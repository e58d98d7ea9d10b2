"""`zot daemon`: start a daemon, or dispatch to status, stop, logs, audit and token."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, ignore_foreign, zot_home
from zot.config.paths import DaemonPaths, locate
from zot.errors import ConfigError, DaemonRunning, UsageError, UserError
from zot.text import printable
from zot.wire.lines import MAX_LINE_BYTES

if TYPE_CHECKING:
    import socket

    from zot.config.file import DaemonSettings, Tls
    from zot.serve.daemon.endpoint import Claim

_OWN_FLAGS = (
    *flags.PLACE_FLAGS,
    flags.Flag("--ephemeral", "end one second after the last client has gone"),
    flags.Flag("--listen", "be there for WebSockets, too, such as at ws://127.0.0.1:7777", value="URL", many=True),
    flags.Flag("--tls-cert", "the certificate for wss://, with those that vouch for it", value="FILE"),
    flags.Flag("--tls-key", "its key, unless it is in the same file", value="FILE"),
    flags.MAX_LINE_FLAG,
    flags.Flag("--replace", "take over from the daemon that runs, without refusing anybody"),
)
_OWN = frozenset(flag.key for flag in _OWN_FLAGS)
#: Not flags of the daemon: its clients choose session, directory and agent.
_CLIENTS = ("--session", "--no-session", "--cwd", "--agent", *(flag.name for flag in _OWN_FLAGS))
_FLAGS = (*_OWN_FLAGS, *(flag for flag in AGENT_FLAGS if flag.name not in _CLIENTS))
_SUMMARY = """\
Serve many sessions to many clients: JSON-RPC 2.0, one object a line, on a local socket.
`zot daemon status`, `stop`, `logs`, `audit` and `token` are about the one that runs."""
#: Thread switch interval: the journal's writer thread needs the interpreter often and briefly, and all sessions wait
#: for it.
_SWITCH_S = 0.0005
#: The time for the daemon to be replaced to report its addresses.
_ASKED_S = 5.0
#: Exit code if another daemon has the endpoint.
_TAKEN = 3


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if argv and not argv[0].startswith("-"):
        from zot.commands.daemon_status import GROUP  # Imported lazily: start-up budget.

        return GROUP.main(argv)
    if (parsed := flags.parse_or_help(argv, "zot daemon", _SUMMARY, _FLAGS, unlisted=FOREIGN_FLAGS)) is None:
        return 0
    settings, words = parsed
    if words:
        raise UsageError(f"zot daemon does not know {words[0]!r}; it takes flags, or a subcommand as its first word")
    ignore_foreign(settings)
    own = {name: value for name, value in settings.items() if name in _OWN}
    place = locate(os.environ, socket=own.get("socket"), config_dir=own.get("config_dir"))
    sys.setswitchinterval(_SWITCH_S)
    gc.disable()  # Modules loaded until it listens are no garbage.
    from zot.config.agents import AgentConfigs
    from zot.serve.stdio import leave, leave_on_signals

    leave_on_signals()
    agents = AgentConfigs.load(place.config_dir or zot_home(os.environ))
    listens = _listens(own, agents.file.daemon)
    if place.config_dir is not None and not os.path.isdir(place.config_dir):  # Clients that start one rely on this.
        sys.stderr.write(f"zot: {printable(place.config_dir)} does not exist: it is made, and nothing is configured\n")
    try:
        claim = _claim(place, listens, replaces=bool(own.get("replace")))
    except DaemonRunning as problem:
        sys.stderr.write(f"zot: {problem}\n")
        return _TAKEN
    import asyncio

    from msgspec.structs import replace

    from zot.commands.daemon_serve import serve

    given = {name: value for name, value in settings.items() if name not in _OWN}
    place = replace(place, socket=claim.path)  # A socket passed by the service manager may be elsewhere.
    limit = own.get("max_line_bytes", MAX_LINE_BYTES)
    serving = serve(
        place, agents, claim, given, ephemeral=bool(own.get("ephemeral")), listens=listens, max_line_bytes=limit
    )
    leave(asyncio.run(serving))


def _listens(own: Mapping[str, Any], settings: DaemonSettings) -> Sequence[tuple[str, Tls | None]]:
    """Return the addresses besides the socket, each once, with their certificate. Raise ConfigError.

    Reports mistakes before any client connects; the web server is imported later.
    """
    addresses = tuple(dict.fromkeys((*own.get("listen", ()), *settings.listen)))
    if not addresses:
        return ()
    from importlib.util import find_spec

    from zot.config.file import Tls, checked_listen_address

    if missing := [name for name in ("starlette", "uvicorn", "websockets") if find_spec(name) is None]:
        raise ConfigError(f"--listen needs {' and '.join(missing)}; in a clone of zot, run: pip install '.[web]'")
    cert, key = own.get("tls_cert") or settings.tls_cert, own.get("tls_key") or settings.tls_key
    tls = None if cert is None else Tls(cert, key)
    for address in addresses:
        checked_listen_address(address, tls)
    return tuple((address, tls) for address in addresses)


def _claim(place: DaemonPaths, listens: Sequence[tuple[str, Tls | None]], *, replaces: bool) -> Claim:
    """Claim the endpoint. Raise DaemonRunning, ConfigError.

    With ``replaces``, reserve the addresses before the running daemon hands over.
    """
    from zot.serve.daemon.endpoint import adopt_listener, claim_endpoint
    from zot.serve.daemon.lifecycle import take_listeners

    passed = take_listeners(os.environ)
    if passed:
        for more in passed[1:]:
            more.close()
        return adopt_listener(_path_of(passed[0]) or place.socket, passed[0])
    if not replaces:
        return claim_endpoint(place.socket)
    from zot.serve.daemon.handover import take_over

    reserved = _reserve(place, listens)
    claim = take_over(place.socket) or claim_endpoint(place.socket)
    claim.others += reserved
    return claim


def _reserve(place: DaemonPaths, listens: Sequence[tuple[str, Tls | None]]) -> Sequence[socket.socket]:
    """Return listening sockets for the addresses that can be bound before the other daemon ends. Raise ConfigError."""
    if not listens:
        return ()
    import asyncio

    from zot.serve.web import reserve

    return asyncio.run(reserve(listens, place.data_dir, held=_ports_in_use(place.socket)))


def _ports_in_use(path: str) -> Container[int]:
    """Return the ports of the running daemon; none if it does not report them."""
    from msgspec import ValidationError, convert

    from zot.client.call import DaemonLine
    from zot.config.file import ListenAddress
    from zot.wire.daemon_types import Status

    try:
        with DaemonLine(path, within_s=_ASKED_S) as line:
            listens = convert(line.ask("status", {}), Status).listens or ()
        return {ListenAddress.parse(url).port for url in listens}
    except (OSError, UserError, ValidationError, ValueError):
        return ()


def _path_of(listener: socket.socket) -> str:
    """Return the path of a passed socket; "" if it is unnamed. Raise ConfigError if it is not a local stream socket."""
    from socket import SOCK_STREAM

    name = listener.getsockname()
    if not isinstance(name, str) or listener.type != SOCK_STREAM:
        where = name.decode("utf-8", "replace").replace("\0", "@") if isinstance(name, bytes) else name
        raise ConfigError(
            f"the socket that was passed to the daemon is no local stream socket with a path, but at {where}: let"
            " ListenStream be a path; for WebSockets there is --listen"
        )
    return name
