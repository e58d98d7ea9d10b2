"""`zot daemon`: start a daemon, or dispatch to status, stop, logs and audit."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, ignore_foreign, zot_home
from zot.config.flags import Flag
from zot.config.paths import DaemonPaths, locate
from zot.errors import ConfigError, DaemonRunning, UsageError, UserError
from zot.text import printable
from zot.wire.lines import MAX_LINE_BYTES

if TYPE_CHECKING:
    import socket

    from zot.config.file import DaemonSettings, Tls
    from zot.serve.daemon.endpoint import Claim

#: Flags that locate a daemon, for it and for its clients.
PLACE_FLAGS = (
    Flag("--socket", "where it listens (ZEROCLAW_SOCKET, else daemon.sock in its data directory)", value="PATH"),
    Flag("--config-dir", "directory of its config.toml; its data directory is data in there", value="DIR"),
)
#: For clients of a daemon that may not run yet.
WAIT_FLAG = Flag(
    "--wait", "how long to wait for a daemon that is about to start (0)", value="SECONDS", parse=flags.seconds
)
_JSON = Flag("--json", "JSON, for programs")
_HELP = Flag("--help", "this text", short="-h")

_OWN_FLAGS = (
    *PLACE_FLAGS,
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
`zot daemon status`, `stop`, `logs` and `audit` are about the one that runs."""
#: Thread switch interval: the journal's writer thread needs the interpreter often and briefly, and all sessions wait
#: for it.
_SWITCH_S = 0.0005
#: The time for the daemon to be replaced to report its addresses.
_ASKED_S = 5.0
#: Exit code if another daemon has the endpoint.
_TAKEN = 3


class Subcommand(msgspec.Struct, frozen=True):
    """A subcommand of `zot daemon`. It takes at most ``words`` words, which ``takes`` names.

    ``where`` is its module and function, imported only when it runs.
    """

    where: str
    help: str
    takes: str = ""
    words: int = 0
    flags: tuple[Flag, ...] = ()


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "status": Subcommand("daemon_status.status", "is one running, which, and what does it do", flags=(_JSON,)),
    "stop": Subcommand("daemon_status.stop", "let it end, and wait until it has", flags=(
        Flag("--timeout", "how long that may take (30)", value="SECONDS", parse=flags.seconds),
        _JSON,
    )),
    "logs": Subcommand("daemon_status.logs", "what it had to say", flags=(
        Flag("--follow", "also what comes, until it is interrupted", short="-f"),
    )),
    "audit": Subcommand("daemon_status.audit", "who called what; verify shows if that was changed", "[verify]", 1, (
        _JSON,
    )),
}  # fmt: skip


def run_subcommand(argv: Sequence[str]) -> int:
    """Run the subcommand named by ``argv[0]``, one of SUBCOMMANDS; return its exit code.

    0 done, 1 failed, 2 wrong usage, 3 if no daemon runs. Raise UserError, which the command line reports.
    """
    from zot.commands.subcommands import CommandRequest, print_note

    name, subcommand = argv[0], SUBCOMMANDS[argv[0]]
    try:
        settings, words = flags.parse(argv[1:], (*subcommand.flags, *PLACE_FLAGS, _HELP))
        if settings.get("help"):
            sys.stdout.write(_usage(name, subcommand) + "\n")
            return 0
        if len(words) > subcommand.words:
            raise UsageError(f"zot daemon {name} takes {subcommand.takes or 'no words'}")
        module, _, function = subcommand.where.partition(".")
        action = getattr(__import__(f"zot.commands.{module}", fromlist=[function]), function)
        code: int = action(CommandRequest(words, settings))
    except UsageError as problem:
        print_note(f"{problem}; zot daemon {name} --help tells more")
        return 2
    return code


def _usage(name: str, subcommand: Subcommand) -> str:
    words = f"zot daemon {name} {subcommand.takes}".rstrip()
    return flags.usage(words, f"{subcommand.help[0].upper()}{subcommand.help[1:]}.", (*subcommand.flags, *PLACE_FLAGS))


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if argv and argv[0] in SUBCOMMANDS:
        return run_subcommand(argv)
    settings, words = flags.parse(argv, (*_FLAGS, *FOREIGN_FLAGS, flags.Flag("--help", "this text", short="-h")))
    if settings.get("help"):
        sys.stdout.write(flags.usage("zot daemon", _SUMMARY, _FLAGS) + "\n")
        return 0
    if words:
        raise UsageError(f"zot daemon does not know {words[0]!r}; it takes flags, or {', '.join(SUBCOMMANDS)}")
    ignore_foreign(settings)
    own = {name: value for name, value in settings.items() if name in _OWN}
    place = locate(os.environ, socket=own.get("socket"), config_dir=own.get("config_dir"))
    sys.setswitchinterval(_SWITCH_S)
    gc.disable()  # Modules loaded until it listens are no garbage.
    from zot.config.agents import AgentConfigs
    from zot.serve.stdio import leave, leave_on_signals

    leave_on_signals()
    agents = AgentConfigs.load(place.config_dir or zot_home(os.environ))
    listens = _listens(own, agents.daemon)
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
        raise ConfigError(f"--listen needs {' and '.join(missing)}: pip install 'zot[web]'")
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
