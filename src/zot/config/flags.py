"""Command-line flags from a table. Not argparse: its import costs half of the start-up budget of `zot rpc`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from zot.errors import UsageError

#: A year: longer waits are pointless, and some clocks overflow.
MAX_SECONDS = 366 * 24 * 3600
#: A duration in settings: above 0, and finite.
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=MAX_SECONDS)]
#: An amount of US dollars in settings: above 0, and finite.
MAX_DOLLARS = 1_000_000_000
Dollars: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=MAX_DOLLARS)]
#: Deadlines of an extension, see `extensions/peer.py`.
DeadlineName: TypeAlias = Literal["hello", "ready", "silence", "tool", "intercept", "command", "shutdown", "terminate"]


class Flag(msgspec.Struct, frozen=True):
    """One flag. Without ``value`` it is a switch; ``many`` collects repeated values into a tuple.

    A ``value`` in brackets is optional, and "" if omitted: at the end of the line, and before another flag.
    """

    name: str
    help: str
    value: str = ""
    short: str = ""
    parse: Callable[[str], Any] = str
    many: bool = False
    setting: str = ""

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
            raise UsageError(f"unknown flag {name!r}; --help lists the known ones")
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
HELP = Flag("--help", "this text", short="-h")


def parse_or_help(
    argv: Sequence[str], command: str, summary: str, flags: Sequence[Flag], *, unlisted: Sequence[Flag] = ()
) -> tuple[dict[str, Any], list[str]] | None:
    """Return what `parse` does; None after printing the help, if that was asked for. Raise UsageError.

    ``unlisted`` flags are accepted, and not in the help.
    """
    settings, words = parse(argv, (*flags, *unlisted, HELP))
    if not settings.pop(HELP.key, False):
        return settings, words
    sys.stdout.write(usage(command, summary, flags) + "\n")
    return None


def usage(command: str, summary: str, flags: Sequence[Flag]) -> str:
    """Return the text for --help."""
    if not flags:
        return f"usage: {command}\n\n{summary}"
    lines = [f"usage: {command} [flags]", "", summary, "", "flags:"]
    for flag in flags:
        left = ", ".join(filter(None, (flag.short, flag.name))) + (f" {flag.value}" if flag.value else "")
        lines.append(f"  {left:<32} {flag.help}{' (repeatable)' if flag.many else ''}")
    return "\n".join(lines)


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


def switch(text: str) -> bool:
    """Parse on or off."""
    return choice("on", "off")(text) == "on"


def choice(*choices: str) -> Callable[[str], str]:
    """Return a parser of one of ``choices``."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return text

    return read


def _value(flag: Flag, text: str) -> Any:
    try:
        return flag.parse(text)
    except ValueError as problem:
        raise UsageError(f"{flag.name} {text}: {problem}") from None


#: For all commands that serve line protocols.
MAX_LINE_FLAG = Flag("--max-line-bytes", "longest line that is read (16 MiB)", value="N", parse=positive)
#: Flags that locate a daemon, for it and for its clients.
PLACE_FLAGS = (
    Flag("--socket", "where it listens (ZEROCLAW_SOCKET, else daemon.sock in its data directory)", value="PATH"),
    Flag("--config-dir", "directory of its config.toml; its data directory is data in there", value="DIR"),
)
#: For clients of a daemon that may not run yet.
WAIT_FLAG = Flag("--wait", "how long to wait for a daemon that is about to start (0)", value="SECONDS", parse=seconds)
