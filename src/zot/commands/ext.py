"""`zot ext`: list, install, remove, enable, disable, trust, create and test extensions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import msgspec

from zot.commands.subcommands import MISUSED, CommandRequest, print_note
from zot.config import flags
from zot.config.config import AGENT_FLAGS
from zot.config.flags import Flag
from zot.errors import UsageError

_HELP = Flag("--help", "this text", short="-h")
#: Flags that sessions also apply to extensions.
_AS_IN_SESSIONS = tuple(flag for flag in AGENT_FLAGS if flag.name in ("--ext-deadline", "--unsandboxed-ext"))
_LANGUAGES = ("python", "typescript", "shell", "go")
_JSON = Flag("--json", "one JSON object a line, for programs")


class ExtCommand(msgspec.Struct, frozen=True):
    """A subcommand of `zot ext`. ``words`` is the least and the greatest number of words that it takes.

    ``where`` is its module and function, imported only when it runs.
    """

    where: str
    words: tuple[int, int]
    takes: str
    help: str
    flags: tuple[Flag, ...] = ()


SUBCOMMANDS: Mapping[str, ExtCommand] = {
    "list": ExtCommand("ext_manage.list_", (0, 0), "", "which there are, which of them run, and why others do not"),
    "install": ExtCommand("ext_manage.install", (1, 1), "PATH|GIT-URL", "copy or clone one into $ZOT_HOME/extensions"),
    "remove": ExtCommand("ext_manage.remove", (1, 1), "NAME", "delete one, with its data", (
        Flag("--yes", "do not ask", short="-y"),
    )),
    "enable": ExtCommand("ext_manage.enable", (1, 1), "NAME", "let one run that was disabled"),
    "disable": ExtCommand("ext_manage.disable", (1, 1), "NAME", "let one not run, without removing it"),
    "logs": ExtCommand("ext_manage.logs", (1, 1), "NAME", "what it wrote to standard error, and what zot says of it", (
        Flag("--follow", "also what comes, until it is interrupted", short="-f"),
    )),
    "trust": ExtCommand("ext_manage.trust", (1, 1), "NAME|DIR", "let one of a project run, as it is now"),
    "untrust": ExtCommand("ext_manage.untrust", (1, 1), "NAME|DIR", "let one of a project not run any more"),
    "new": ExtCommand("ext_author.new", (1, 2), "NAME [DIR]", "begin one that works, in DIR or ./NAME", (
        Flag("--lang", f"{', '.join(_LANGUAGES[:-1])} or {_LANGUAGES[-1]} ({_LANGUAGES[0]})", value="LANGUAGE",
             parse=flags.choice(*_LANGUAGES)),
    )),
    "test": ExtCommand("ext_author.test", (1, 1), "DIR", "talk to one as a session would; report its faults", (
        Flag("--call-tools", "call its tools, too, with made-up arguments; they do what they do"),
        *_AS_IN_SESSIONS,
    )),
    "run": ExtCommand("ext_author.run", (1, 1), "DIR", "start one and type its commands, such as /name args", (
        Flag("--trace", "show every frame: > what it is told, < what it says"),
        *_AS_IN_SESSIONS,
    )),
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: 0 done, 1 failed, 2 wrong usage."""
    name, rest = (argv[0], argv[1:]) if argv else ("", argv)
    if name in ("--help", "-h", "help"):
        sys.stdout.write(_usage() + "\n")
        return 0
    subcommand = SUBCOMMANDS.get({"rm": "remove"}.get(name, name))
    try:
        if subcommand is None:
            raise UsageError(f"zot ext cannot {name!r}" if name else "say what zot ext should do")
        settings, words = flags.parse(rest, (*subcommand.flags, _JSON, _HELP))
        if settings.get("help"):
            sys.stdout.write(_usage_of(name, subcommand) + "\n")
            return 0
        least, most = subcommand.words
        if not least <= len(words) <= most or not all(words):
            raise UsageError(f"zot ext {name} takes {subcommand.takes or 'no words'}")
        return _run(subcommand, CommandRequest(words, settings))
    except UsageError as problem:
        print_note(f"{problem}; zot ext --help tells more")
        return MISUSED


def _run(subcommand: ExtCommand, request: CommandRequest) -> int:
    module, _, function = subcommand.where.partition(".")
    action = getattr(__import__(f"zot.commands.{module}", fromlist=[function]), function)
    code: int = action(request)
    return code


def _usage() -> str:
    rows = [(f"{name} {command.takes}".rstrip(), command.help) for name, command in SUBCOMMANDS.items()]
    width = max(len(left) for left, _ in rows)
    lines = [f"  zot ext {left:<{width}}  {text}" for left, text in rows]
    tail = "A NAME may be that of the extension, or its directory. `zot ext list --help` and so on tell more."
    return "\n".join(["usage: zot ext SUBCOMMAND [flags]", "", *lines, "", tail])


def _usage_of(name: str, subcommand: ExtCommand) -> str:
    words = f"zot ext {name} {subcommand.takes}".rstrip()
    return flags.usage(words, f"{subcommand.help[0].upper()}{subcommand.help[1:]}.", (*subcommand.flags, _JSON))
