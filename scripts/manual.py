"""Write docs/reference/cli.md and docs/man/*.1 from the tables that --help prints.

python scripts/manual.py            after a change of a flag, a command or its help
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zot.cli import _USAGE
from zot.commands import lab, once, terminal
from zot.commands.completion import COMMANDS, manual_of
from zot.commands.daemon_manage import GROUP
from zot.commands.subcommands import CommandGroup
from zot.config.flags import HELP, HELP_ALL, Flag, Manual
from zot.version import __version__

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "cli.md"
MAN = ROOT / "docs" / "man"
_HEAD = """\
# Command line

Every command and flag. `zot COMMAND --help` prints the common flags of one command, `--help-all` all of them. Flags
that all agents share are listed in full with [zot rpc](#zot-rpc).

```text
{usage}
```

`zot completion bash`, `zsh` or `fish` prints a completion script; [below](#zot-completion) is the line for the start-up
file of your shell.

The package has manual pages: `man zot`, `man zot-rpc` and so on. `man` finds them after `pipx install`, and in an
activated virtual environment. `uv tool install` does not link them; use
`man -M "$(uv tool dir)/zot-agent/share/man" zot`.
"""


def manuals() -> Iterator[tuple[str, Manual | CommandGroup]]:
    """Return each command line with its manual, in the order of the page."""
    yield "zot", terminal.MANUAL
    yield "zot -p", once.MANUAL
    for command in COMMANDS:
        yield f"zot {command}", manual_of(command)
        if command == "daemon":
            yield "zot daemon SUBCOMMAND", GROUP
        if command == "lab":
            yield "zot lab check", lab.CHECK_MANUAL


def page() -> str:
    """Return reference/cli.md. Flags that all agents share are listed once, with `zot rpc`."""
    parts = [_HEAD.format(usage=_USAGE)]
    for name, manual in manuals():
        parts.append(f"## {name}\n\n{_block(manual.text() if isinstance(manual, CommandGroup) else _of(name, manual))}")
        if isinstance(manual, CommandGroup):
            for one in manual.subcommands.values():
                if one.flags or one.manual:
                    text = manual.manual(one).text(everything=one.manual is None).split("\n\nExit codes")[0]
                    parts.append(f"### {manual.command} {one.name}\n\n{_block(text)}")
    return "\n".join(parts)


def _of(name: str, manual: Manual) -> str:
    return manual.text(everything=name == "zot rpc" or not any(flag.advanced for flag in manual.flags))


def _block(text: str) -> str:
    return f"```text\n{text}\n```\n"


def man_pages() -> dict[str, str]:
    """Return the manual pages by file name."""
    made = {"zot.1": _man("zot", "the agent runtime that other programs embed", _usage_body())}
    for name, manual in manuals():
        title = name.replace(" -p", "-prompt").replace(" SUBCOMMAND", "-manage").replace(" ", "-")
        if title != "zot":
            body = _group_body(manual) if isinstance(manual, CommandGroup) else _manual_body(manual)
            made[f"{title}.1"] = _man(title, manual.summary.split("\n")[0].rstrip("."), body)
    return made


def _man(title: str, purpose: str, body: list[str]) -> str:
    head = [
        f'.TH "{title.upper()}" "1" "" "zot {__version__}" "User Commands"',
        ".SH NAME",
        f"{title} \\- {_roff(purpose)}",
    ]
    return "\n".join([*head, *body, ".SH SEE ALSO", "zot(1), and the documentation that comes with the source.", ""])


def _usage_body() -> list[str]:
    usage, *commands = _USAGE.strip().split("\n")
    head = [".SH SYNOPSIS", _roff(usage.removeprefix("Usage: ")), ".SH DESCRIPTION", ".nf"]
    return [*head, *map(_roff, "\n".join(commands).strip().split("\n")), ".fi", *_sections(terminal.MANUAL)]


def _manual_body(manual: Manual) -> list[str]:
    body = [".SH SYNOPSIS", f".B {_roff(manual.usage)}", "[flags]", ".SH DESCRIPTION", ".nf"]
    return [*body, *map(_roff, manual.summary.split("\n")), ".fi", *_sections(manual)]


def _sections(manual: Manual) -> list[str]:
    body: list[str] = []
    flags = (*manual.flags, HELP, HELP_ALL)
    for group in dict.fromkeys(flag.group for flag in flags):
        body.append(f".SH {(group or 'Flags').upper()}")
        for flag in (one for one in flags if one.group == group):
            body += [".TP", _roff_flag(flag), _roff(f"{flag.help} Repeatable." if flag.many else flag.help)]
    return [*body, *_examples(manual.examples), *_exits(manual.exits)]


def _group_body(group: CommandGroup) -> list[str]:
    body = [".SH SYNOPSIS", f".B {group.command}", "SUBCOMMAND [flags]", ".SH DESCRIPTION", _roff(group.summary)]
    body.append(".SH SUBCOMMANDS")
    for one in group.subcommands.values():
        body += [".TP", f".B {_roff(f'{one.name} {one.takes}'.rstrip())}", _roff(one.summary)]
        for flag in group.manual(one).flags:
            body += [".RS", ".TP", _roff_flag(flag), _roff(flag.help), ".RE"]
    return [*body, *_examples(group.examples), *_exits(group.exits)]


def _roff_flag(flag: Flag) -> str:
    names = ", ".join(name for name in (flag.short, flag.name) if name)
    return f'.BI "{_roff(names)}" " {_roff(flag.value)}"' if flag.value else f".B {_roff(names)}"


def _examples(examples: Sequence[tuple[str, str]]) -> list[str]:
    lines = [".SH EXAMPLES"]
    for line, purpose in examples:
        lines += [".TP", f".B {_roff(line)}", _roff(purpose)]
    return lines if len(lines) > 1 else []


def _exits(exits: Mapping[int, str]) -> list[str]:
    lines = [".SH EXIT STATUS"]
    for code, meaning in exits.items():
        lines += [".TP", f".B {code}", _roff(meaning)]
    return lines if len(lines) > 1 else []


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    PAGE.write_text(page())
    MAN.mkdir(exist_ok=True)
    for old in MAN.glob("*.1"):
        old.unlink()
    for name, text in man_pages().items():
        (MAN / name).write_text(text)
    print(f"{PAGE.name} and {len(man_pages())} manual pages")
