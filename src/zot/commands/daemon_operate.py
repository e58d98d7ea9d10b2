"""What `zot daemon` does beside being one: look at the daemon that runs, end it, and read what it has written down."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from zot.config import flags
from zot.config.flags import Flag
from zot.errors import UsageError

#: Where a daemon is: for it and for whoever looks for it.
PLACE_FLAGS = (
    Flag("--socket", "where it listens (ZEROCLAW_SOCKET, else daemon.sock in its data directory)", value="PATH"),
    Flag("--config-dir", "directory of its config.toml; its data directory is data in there", value="DIR"),
)
#: For whoever needs one that may not be there yet.
WAIT_FLAG = Flag(
    "--wait", "how long to wait for a daemon that is about to start (0)", value="SECONDS", parse=flags.seconds
)
_JSON = Flag("--json", "JSON, for programs")
_HELP = Flag("--help", "this text", short="-h")


class Subcommand(msgspec.Struct, frozen=True):
    """One thing to do with a daemon. It takes ``words`` at most, which ``takes`` names.

    ``where`` is the module and the function that does it, imported only when it is the one.
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
    "logs": Subcommand("daemon_logs.logs", "what it had to say", flags=(
        Flag("--follow", "also what comes, until it is interrupted", short="-f"),
    )),
    "audit": Subcommand("daemon_logs.audit", "who called what; verify shows if that was changed", "[verify]", 1, (
        _JSON,
    )),
}  # fmt: skip


def operate(argv: Sequence[str]) -> int:
    """Run the subcommand that ``argv`` begins with, one of SUBCOMMANDS; return its exit code.

    0 done, 1 failed, 2 wrong usage, 3 if there is no daemon. Raise UserError for what the command line reports.
    """
    from zot.commands.subcommands import Request, remark

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
        code: int = action(Request(words, settings))
    except UsageError as problem:
        remark(f"{problem}; zot daemon {name} --help tells more")
        return 2
    return code


def _usage(name: str, subcommand: Subcommand) -> str:
    words = f"zot daemon {name} {subcommand.takes}".rstrip()
    return flags.usage(words, f"{subcommand.help[0].upper()}{subcommand.help[1:]}.", (*subcommand.flags, *PLACE_FLAGS))
