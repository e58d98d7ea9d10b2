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

GROUP = CommandGroup("zot ext", "Manage extensions: programs that add tools, commands, panels and guards.", (
    Subcommand("list", "", "List extensions and their state.", "ext_manage.list_"),
    Subcommand("install", "PATH|GIT-URL", "Install an extension for every session.", "ext_manage.install", _ONE),
    Subcommand("remove", "NAME", "Delete an installed extension and its data.", "ext_manage.remove", _ONE, (
        Flag("--yes", "Do not ask for confirmation.", short="-y"),
    ), alias="rm"),
    Subcommand("enable", "NAME", "Enable a disabled extension.", "ext_manage.enable", _ONE),
    Subcommand("disable", "NAME", "Disable an extension without deleting it.", "ext_manage.disable", _ONE),
    Subcommand("logs", "NAME", "Print an extension's log.", "ext_manage.logs", _ONE, (
        Flag("--follow", "Keep printing new lines until interrupted.", short="-f"),
    )),
    Subcommand("trust", "NAME|DIR", "Trust a project's extension, as its files are now.", "ext_manage.trust", _ONE),
    Subcommand("untrust", "NAME|DIR", "Withdraw the trust in a project's extension.", "ext_manage.untrust", _ONE),
    Subcommand("new", "NAME [DIR]", "Create a working extension in DIR (default: ./NAME).", "ext_author.new", (1, 2), (
        Flag("--lang", f"Use {', '.join(_LANGUAGES[:-1])} or {_LANGUAGES[-1]} (default: {_LANGUAGES[0]}).",
             value="LANGUAGE", parse=flags.choice(*_LANGUAGES)),
    )),
    Subcommand("test", "DIR", "Test an extension as a session would use it.", "ext_author.test", _ONE, (
        Flag("--call-tools", "Also call its tools, with made-up arguments. They take effect."),
        *_AS_IN_SESSIONS,
    )),
    Subcommand("run", "DIR", "Start an extension and type its commands, such as /NAME ARGS.", "ext_author.run", _ONE, (
        Flag("--trace", "Print every frame: > sent, < received."),
        *_AS_IN_SESSIONS,
    )),
), flags=(JSON_FLAG,), note="NAME is the name of an extension, or its directory.", examples=(
    ("zot ext new greet && zot ext test greet", "Create an extension and test it."),
    ("zot ext install ./greet", "Make it available to every session."),
))  # fmt: skip
main = GROUP.main
