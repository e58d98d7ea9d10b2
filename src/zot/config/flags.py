"""Command-line flags and help from tables. Not argparse: its import costs half of the start-up budget of `zot rpc`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from zot.errors import UsageError
from zot.text import did_you_mean

#: A year: longer waits are pointless, and some clocks overflow.
MAX_SECONDS = 366 * 24 * 3600
#: A duration in settings: above 0, and finite.
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
#: An amount of US dollars in settings: above 0, and finite.
MAX_DOLLARS = 1_000_000_000
Dollars: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=MAX_DOLLARS)]
#: How much the model thinks before it answers.
Reasoning: TypeAlias = Literal["off", "low", "medium", "high"]
#: Deadlines of an extension, see `extensions/peer.py`.
DeadlineName: TypeAlias = Literal["hello", "ready", "silence", "tool", "intercept", "command", "shutdown", "terminate"]


class Flag(msgspec.Struct, frozen=True):
    """One flag. Without ``value`` it is a switch; ``many`` collects repeated values into a tuple.

    A ``value`` in brackets is optional, and "" if omitted: at the end of the line, and before another flag. Help lists
    flags by ``group``, and ``advanced`` ones only with --help-all.
    """

    name: str
    help: str
    value: str = ""
    short: str = ""
    parse: Callable[[str], Any] = str
    many: bool = False
    setting: str = ""
    group: str = ""
    advanced: bool = False

    @property
    def key(self) -> str:
        """The name of the setting."""
        return self.setting or self.name.removeprefix("--").replace("-", "_")


def parse(argv: Sequence[str], flags: Sequence[Flag]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of the flags, and the remaining words. Raise UsageError for an invalid flag."""
    table = {name: flag for flag in flags for name in (flag.name, flag.short) if name}
    settings: dict[str, Any] = {}
    words: list[str] = []
    rest = list(reversed(argv))
    while rest:
        word = rest.pop()
        if word == "--":
            return settings, words + rest[::-1]
        if not word.startswith("-") or word == "-":
            words.append(word)
            continue
        name, given, inline = word.partition("=")
        flag = table.get(name)
        if flag is None:
            listed = [one.name for one in flags]
            raise UsageError(f"unknown flag {name}{did_you_mean(name, listed) or '; --help-all lists every flag'}")
        if not flag.value:
            if given:
                raise UsageError(f"{name} takes no value")
            settings[flag.key] = True
            continue
        if flag.value.startswith("[") and not given and (not rest or rest[-1].startswith("-")):
            settings[flag.key] = ""
            continue
        if not given and not rest:
            raise UsageError(f"{name} needs a value: {name} {flag.value}")
        value = _value(flag, inline if given else rest.pop())
        settings[flag.key] = (*settings.get(flag.key, ()), value) if flag.many else value
    return settings, words


#: Understood by every command.
HELP = Flag("--help", "Show the common flags and examples.", short="-h", group="Help")
HELP_ALL = Flag("--help-all", "Show every flag.", group="Help")

_WIDTH = 100
_LEFT = 30


class Manual(msgspec.Struct, frozen=True):
    """The help of one command. ``usage`` is its command line without flags, ``unlisted`` are flags it only accepts.

    ``examples`` are command lines, each with its purpose; ``exits`` the exit codes, each with its meaning.
    """

    usage: str
    summary: str
    flags: Sequence[Flag] = ()
    unlisted: Sequence[Flag] = ()
    examples: Sequence[tuple[str, str]] = ()
    exits: Mapping[int, str] = {}

    @property
    def command(self) -> str:
        """The command without its words: the usage up to the first word in brackets or capitals."""
        words = self.usage.split()
        ends = (at for at, word in enumerate(words) if word.startswith("[") or not word.islower())
        return " ".join(words[: next(ends, len(words))])

    def text(self, *, everything: bool = False) -> str:
        """Return the text for --help, or for --help-all."""
        shown = [flag for flag in (*self.flags, HELP, HELP_ALL) if everything or not flag.advanced]
        hidden = len(self.flags) + 2 - len(shown)
        blocks = [f"Usage: {self.usage} [flags]", self.summary]
        for group in dict.fromkeys(flag.group for flag in shown):
            rows = [(_left(flag), _right(flag)) for flag in shown if flag.group == group]
            blocks.append(table(group or "Flags", rows))
        if hidden:
            blocks.append(f"{hidden} more {'flag' if hidden == 1 else 'flags'}: {self.command} --help-all")
        if self.examples:
            blocks.append("Examples:\n" + "\n".join(f"  {line}\n      {purpose}" for line, purpose in self.examples))
        if self.exits:
            blocks.append(table("Exit codes", [(str(code), meaning) for code, meaning in self.exits.items()], left=3))
        return "\n\n".join(blocks)


def table(title: str, rows: Sequence[tuple[str, str]], *, left: int = _LEFT) -> str:
    """Return a titled list of terms with their explanations, wrapped."""
    from textwrap import wrap  # Imported lazily: only help needs it.

    lines = [f"{title}:"]
    for term, explanation in rows:
        first, *more = wrap(explanation, _WIDTH - left - 4) or [""]
        if len(term) > left:
            lines.append(f"  {term}")
            lines += [f"{'':{left + 4}}{line}" for line in (first, *more)]
        else:
            lines.append(f"  {term:<{left}}  {first}".rstrip())
            lines += [f"{'':{left + 4}}{line}" for line in more]
    return "\n".join(lines)


def _left(flag: Flag) -> str:
    return ", ".join(filter(None, (flag.short, flag.name))) + (f" {flag.value}" if flag.value else "")


def _right(flag: Flag) -> str:
    return f"{flag.help} Repeatable." if flag.many else flag.help


def parse_or_help(argv: Sequence[str], manual: Manual) -> tuple[dict[str, Any], list[str]] | None:
    """Return what `parse` does; None after printing the help, if that was asked for. Raise UsageError."""
    settings, words = parse(argv, (*manual.flags, *manual.unlisted, HELP, HELP_ALL))
    everything = settings.pop(HELP_ALL.key, False)
    if not settings.pop(HELP.key, False) and not everything:
        return settings, words
    sys.stdout.write(manual.text(everything=everything) + "\n")
    return None


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of seconds") from None
    if not 0 < number <= MAX_SECONDS:
        raise ValueError(f"must be above 0 and at most {MAX_SECONDS}")
    return number


def dollars(text: str) -> float:
    """Parse an amount of money above 0."""
    try:
        amount = float(text)
    except ValueError:
        raise ValueError("must be an amount of US dollars, such as 0.50") from None
    if not 0 < amount <= MAX_DOLLARS:
        raise ValueError(f"must be above 0 and at most {MAX_DOLLARS}")
    return amount


class Choice(msgspec.Struct, frozen=True):
    """A parser of one of several words. ``noun`` names what they are."""

    words: tuple[str, ...]
    noun: str = ""

    def __call__(self, text: str) -> str:
        """Return ``text`` if it is one of the words. Raise ValueError."""
        if text not in self.words:
            begin = f"unknown {self.noun} {text!r}; known:" if self.noun else "must be one of"
            raise ValueError(f"{begin} {', '.join(self.words)}{did_you_mean(text, self.words)}")
        return text


def choice(*words: str) -> Choice:
    """Return a parser of one of ``words``."""
    return Choice(words)


def switch(text: str) -> bool:
    """Parse on or off."""
    return choice("on", "off")(text) == "on"


def _value(flag: Flag, text: str) -> Any:
    try:
        return flag.parse(text)
    except ValueError as problem:
        raise UsageError(f"{flag.name} {_without_password(text)}: {problem}") from None


def _without_password(text: str) -> str:
    """Return a value without what an address may have before its host: errors are printed and logged."""
    scheme, mark, rest = text.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


#: For all commands that serve line protocols.
MAX_LINE_FLAG = Flag(
    "--max-line-bytes",
    "Refuse longer input lines (default: 16 MiB).",
    value="N",
    parse=positive,
    group="Limits",
    advanced=True,
)
#: Flags that locate a daemon, for it and for its clients.
PLACE_FLAGS = (
    Flag(
        "--socket",
        "Use this socket (default: $ZEROCLAW_SOCKET, else daemon.sock in the data directory).",
        value="PATH",
        group="Endpoint",
    ),
    Flag(
        "--config-dir",
        "Read config.toml in this directory; the data directory is DIR/data.",
        value="DIR",
        group="Endpoint",
    ),
)
#: For clients of a daemon that may not run yet.
WAIT_FLAG = Flag(
    "--wait",
    "Wait this long for a daemon that is starting (default: 0).",
    value="SECONDS",
    parse=seconds,
    group="Endpoint",
)


class McpServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """MCP server: a program to start that offers tools over its standard input and output, or an address over HTTP.

    ``env`` is added to a clean environment; `${NAME}` and `${NAME:-DEFAULT}` are replaced in ``command``, ``args``,
    ``env``, ``cwd``, ``url`` and ``headers``. ``tools`` are patterns of the server's own names for the tools to offer.
    ``timeout_s`` is how long a call may be silent. ``sandbox`` is false for a server that `--lock` does not confine.
    ``client_id`` and ``client_secret`` are zot's registration at the authorization server, if it was made by hand.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    tools: tuple[str, ...] = ("*",)
    enabled: bool = True
    timeout_s: Seconds = 60.0
    sandbox: bool = True
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""

    def __repr__(self) -> str:
        """Show the program or the address's host, without environment, arguments and headers: they may be secret."""
        return f"McpServer(command={self.command!r})"


class LiteralMcpServer(McpServer, frozen=True, kw_only=True):
    """MCP server that a client passes: `${NAME}` stays as it is, so that a client reads no variable of zot."""


def mcp_server(text: str) -> tuple[str, McpServer]:
    """Parse NAME=COMMAND, a server with its arguments, or NAME=URL. Raise ValueError."""
    import shlex  # Imported lazily: few name a server.

    name, equals, line = text.partition("=")
    if line.startswith(("https://", "http://")) and is_mcp_name(name):
        return name, McpServer(url=line)
    try:
        command, *args = shlex.split(line)
    except ValueError:  # No word, or an open quote.
        command, args = "", []
    if not equals or not command:
        raise ValueError("expected NAME=COMMAND or NAME=URL, such as files='mcp-files --root .'")
    if not is_mcp_name(name):
        raise ValueError(f"{name!r} is not a valid server name: {MCP_NAME_RULE}")
    if "://" in command:
        raise ValueError(f"{command!r} is not an address of http or https")
    return name, McpServer(command=command, args=tuple(args))


#: The rule that `is_mcp_name` checks.
MCP_NAME_RULE = "up to 32 letters, digits, `-` and single `_`, a letter or digit first, and no `_` last"


def is_mcp_name(name: str) -> bool:
    """True if a server can be called ``name``. Two underscores separate it from the name of a tool."""
    letters = name.replace("-", "").replace("_", "")
    is_plain = letters.isascii() and letters.isalnum() and len(name) <= 32
    return is_plain and name[0].isalnum() and name[-1] != "_" and "__" not in name
