"""`zot ext`: list, install, remove, enable, disable, trust, create and test extensions."""

from __future__ import annotations

from zot.commands.subcommands import JSON_FLAG, CommandGroup, Subcommand
from zot.config import flags
from zot.config.config import AGENT_FLAGS
from zot.config.flags import Flag

#: Flags that sessions also apply to extensions.
_AS_IN_SESSIONS = tuple(flag for flag in AGENT_FLAGS if flag.name in ("--ext-deadline", "--unsandboxed-ext"))
_LANGUAGES = ("python", "typescript", "shell", "go")
_ONE = (1, 1)

GROUP = CommandGroup("zot ext", (
    Subcommand("list", "", "which there are, which of them run, and why others do not", "ext_manage.list_"),
    Subcommand("install", "PATH|GIT-URL", "copy or clone one into $ZOT_HOME/extensions", "ext_manage.install", _ONE),
    Subcommand("remove", "NAME", "delete one, with its data", "ext_manage.remove", _ONE, (
        Flag("--yes", "do not ask", short="-y"),
    ), alias="rm"),
    Subcommand("enable", "NAME", "let one run that was disabled", "ext_manage.enable", _ONE),
    Subcommand("disable", "NAME", "let one not run, without removing it", "ext_manage.disable", _ONE),
    Subcommand("logs", "NAME", "what it wrote to standard error, and what zot says of it", "ext_manage.logs", _ONE, (
        Flag("--follow", "also what comes, until it is interrupted", short="-f"),
    )),
    Subcommand("trust", "NAME|DIR", "let one of a project run, as it is now", "ext_manage.trust", _ONE),
    Subcommand("untrust", "NAME|DIR", "let one of a project not run any more", "ext_manage.untrust", _ONE),
    Subcommand("new", "NAME [DIR]", "begin one that works, in DIR or ./NAME", "ext_author.new", (1, 2), (
        Flag("--lang", f"{', '.join(_LANGUAGES[:-1])} or {_LANGUAGES[-1]} ({_LANGUAGES[0]})", value="LANGUAGE",
             parse=flags.choice(*_LANGUAGES)),
    )),
    Subcommand("test", "DIR", "talk to one as a session would; report its faults", "ext_author.test", _ONE, (
        Flag("--call-tools", "call its tools, too, with made-up arguments; they do what they do"),
        *_AS_IN_SESSIONS,
    )),
    Subcommand("run", "DIR", "start one and type its commands, such as /name args", "ext_author.run", _ONE, (
        Flag("--trace", "show every frame: > sent to it, < received from it"),
        *_AS_IN_SESSIONS,
    )),
), flags=(JSON_FLAG,), note="A NAME may be that of the extension, or its directory.")  # fmt: skip
main = GROUP.main
