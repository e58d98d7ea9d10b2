"""Command-line dispatch: argv to a command. Imports only the chosen command."""

from __future__ import annotations

import gc
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

_OBJECTS_PER_COLLECTION = 60_000
_INTERRUPTED = 130
#: Answered from this file alone: start-up budget.
_ANSWERED_HERE = (["--version"], ["-V"], ["--help"], ["-h"], ["help"])
_USAGE = """\
Usage: zot [COMMAND] [flags]

A coding agent that other programs embed.

Talk to the agent:
  zot                     Talk to the agent in this terminal.
  zot -p PROMPT           Answer one prompt and exit; piped input follows the prompt.
  zot --json PROMPT       Answer one prompt; print every event as a line of JSON.
  zot attach [SESSION]    Follow a session of the daemon and type into it.

Serve other programs:
  zot rpc                 Serve one session over standard input and output (zot RPC v1).
  zot acp                 Serve an editor over standard input and output (Agent Client Protocol v1).
  zot mcp serve           Serve an MCP client over standard input and output: the agent as a tool.
  zot host                Answer one request of a chat bridge (host protocol v1).
  zot daemon              Serve many sessions to many clients; manage the running daemon.
  zot worker              Run the prompts of sessions in PostgreSQL.
  zot web                 Open the dashboard of the daemon in a browser; pair devices.
  zot call METHOD [JSON]  Call a method of the daemon.
  zot lab serve           Serve a scripted model over HTTP, for tests.

Set up and manage:
  zot login PROVIDER      Store a provider's key; zot logout PROVIDER deletes it.
  zot doctor              Check the set-up: keys, services, policy, sandbox.
  zot config              Show the effective settings and their sources; check config.toml.
  zot models              List models, their windows and prices.
  zot sessions            List, show, search, export, fork, rewind and delete sessions.
  zot fleet status        Show workers, pools and leases in PostgreSQL.
  zot ext                 Install, create, test and trust extensions.
  zot mcp                 List, test, call and trust MCP servers.
  zot skills              List and trust skills.
  zot prompt              Print the system prompt.
  zot completion SHELL    Print a completion script for bash, zsh or fish.

Flags of a command: zot COMMAND --help. Without a key: zot -p "show me" --provider lab
Exit codes: 0 done, 1 failed, 2 wrong usage."""


def main() -> None:
    """Run the command line and exit."""
    # Imported modules are not garbage: the default threshold would cost 5 % of every start.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    argv = sys.argv[1:]
    if sys.platform == "win32" and argv not in _ANSWERED_HERE:
        from zot.errors import NOT_ON_WINDOWS  # Imported lazily: `--version` is answered from this file alone.

        sys.exit(f"zot: {NOT_ON_WINDOWS}")
    if _is_host(argv):
        _hold_signals()
    if argv[:1] not in _ANSWERED_HERE:
        from zot.serve.stdio import guard_streams  # Imported lazily: `--version` is answered from this file alone.

        guard_streams()
    try:
        _check_output(argv)
        code = run(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        # Before a command handles SIGINT, and in commands that have nothing to clean up.
        _exit(_INTERRUPTED)
    except OSError as problem:
        # Only writes to our own output are unguarded: the reader closed it, or the disk is full.
        _leave(problem)
    sys.exit(code)


def _hold_signals() -> None:
    """Block the signals that end the process until the command handles them: `host` always answers."""
    # Before any other import: an earlier signal would end the process without an answer.
    import signal

    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def _check_output(argv: Sequence[str]) -> None:
    """Exit if standard output is closed; only commands that serve a protocol can run without it."""
    serves = argv[:1] in (["rpc"], ["--rpc"], ["acp"], ["host"], ["daemon"]) or argv[:2] == ["mcp", "serve"]
    if sys.stdout is None and (not serves or not {"--help", "--help-all", "-h"}.isdisjoint(argv)):
        if sys.stderr is not None:
            sys.stderr.write("zot: standard output is closed\n")
        _exit(1)


def _leave(problem: OSError) -> NoReturn:
    if isinstance(problem, BrokenPipeError):
        _exit(0)
    if problem.filename is None:
        sys.stderr.write(f"zot: the output could not be written: {problem.strerror or problem}\n")
    else:
        from zot.errors import SystemFailed  # Imported lazily: needed only on failure.

        sys.stderr.write(f"zot: {SystemFailed.of(problem)}\n")
    _exit(1)


def _exit(code: int) -> NoReturn:
    """Exit without the interpreter's final flush, which would fail again."""
    from zot.serve.stdio import leave  # Imported lazily: `--version` does not need it.

    leave(code)


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    if len(argv) == 1 and _is_host(argv):
        argv = argv[0].split()  # Some bridges can pass a command only one argument.
    word, rest = (argv[0], argv[1:]) if argv else ("", argv)
    if word in ("--version", "-V"):
        from zot.version import __version__  # Imported lazily: only this flag needs it.

        sys.stdout.write(f"zot {__version__}\n")
        return 0
    if word in ("--help", "-h", "help"):
        sys.stdout.write(_USAGE + "\n")
        return 0
    command = _COMMANDS.get(word)
    if command is None and _asks_once(argv):
        return _run("once", argv)
    if command is None and "--rpc" in argv:
        return _run("rpc", [one for one in argv if one != "--rpc"])
    if command is None and (not word or word.startswith("-")) and _is_terminal():
        return _run("terminal", argv)
    if command is None and word.startswith("-") and not _misplaced(argv):
        return _run("terminal.report_missing_prompt", argv)
    if command is None:
        sys.stderr.write(f"zot: {_misread(argv)}\nTry: zot --help\n" if word else f"{_USAGE}\n")
        return 2
    if argv[:2] == ["mcp", "serve"]:  # A client waits for its greeting, which needs nothing of the other subcommands.
        return _run("mcp_serve", argv[2:])
    return _run(command, rest)


def _is_host(argv: Sequence[str]) -> bool:
    """True for `zot host`, also with all its words in one argument."""
    return argv[:1] == ["host"] or (len(argv) == 1 and argv[0].startswith("host "))


def _misread(argv: Sequence[str]) -> str:
    """Return why a command line without a leading command is wrong."""
    if not argv[0].startswith("-"):
        from zot.text import did_you_mean  # Imported lazily: only mistakes need it.

        near = did_you_mean(argv[0], [name for name in _COMMANDS if name.isalpha()])
        return f"unknown command {argv[0]!r}{near or f'; to ask the agent: zot -p {argv[0]!r}'}"
    return f"the command comes first: zot {_misplaced(argv)} {argv[0]} ..."


def _misplaced(argv: Sequence[str]) -> str:
    """Return a command that comes after flags; "" if none does. A provider may have the name of a command."""
    return next((word for at, word in enumerate(argv) if word in _COMMANDS and argv[at - 1] != "--provider"), "")


#: Command to module of `zot.commands`, imported on use, and its function unless that is `main`.
_COMMANDS: Mapping[str, str] = {
    "rpc": "rpc",
    "--rpc": "rpc",
    "acp": "acp",
    "worker": "worker",
    "fleet": "fleet",
    "sessions": "sessions",
    "host": "host",
    "lab": "lab",
    "models": "models",
    "login": "login",
    "logout": "login.logout",
    "doctor": "doctor",
    "daemon": "daemon",
    "web": "web",
    "attach": "attach",
    "call": "call",
    "config": "config",
    "skills": "skills",
    "ext": "ext",
    "mcp": "mcp",
    "prompt": "prompt",
    "completion": "completion",
}


def _asks_once(argv: Sequence[str]) -> bool:
    """True if the flags ask for one answer to a prompt; they may come anywhere."""
    return any(word in ("-p", "--print", "--json") for word in argv)


def _is_terminal() -> bool:
    """True if standard input and output are terminals; standard error may be a file."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _run(command: str, argv: Sequence[str]) -> int:
    from zot.errors import AgentError, UsageError  # Imported lazily: `--version` does not need it.

    try:
        # `importlib` would take as long to import as the rest of this file.
        module, _, function = command.partition(".")
        code: int = getattr(__import__(f"zot.commands.{module}", fromlist=["main"]), function or "main")(argv)
    except AgentError as problem:
        from zot.text import escaped  # Imported lazily: needed only on failure.

        sys.stderr.write(f"zot: {escaped(str(problem))}\n")
        return 2 if isinstance(problem, UsageError) else 1
    return code
