"""`zot completion`: print a completion script for bash, zsh or fish, made from the tables that --help prints."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec

from zot.commands import once, terminal
from zot.commands.daemon_manage import GROUP
from zot.commands.subcommands import CommandGroup
from zot.config import flags
from zot.config.flags import Choice, Flag, Manual
from zot.errors import UsageError
from zot.text import did_you_mean

SHELLS = ("bash", "zsh", "fish")
MANUAL = Manual(
    "zot completion SHELL",
    "Print a completion script for bash, zsh or fish.",
    examples=(
        ('eval "$(zot completion bash)"', "In ~/.bashrc."),
        ('eval "$(zot completion zsh)"', "In ~/.zshrc, after compinit."),
        ("zot completion fish | source", "In ~/.config/fish/config.fish."),
    ),
    exits={0: "Printed.", 2: "Wrong usage."},
)

#: Commands, each with its module and the names of its manuals.
COMMANDS = {
    "rpc": ("rpc", "MANUAL"),
    "acp": ("acp", "MANUAL"),
    "host": ("host", "MANUAL"),
    "daemon": ("daemon", "MANUAL"),
    "worker": ("worker", "MANUAL"),
    "fleet": ("fleet", "GROUP"),
    "web": ("web", "GROUP"),
    "attach": ("attach", "MANUAL"),
    "call": ("call", "MANUAL"),
    "lab": ("lab", "MANUAL"),
    "sessions": ("sessions", "GROUP"),
    "ext": ("ext", "GROUP"),
    "mcp": ("mcp", "GROUP"),
    "skills": ("skills", "GROUP"),
    "models": ("models", "MANUAL"),
    "config": ("config", "MANUAL"),
    "login": ("login", "MANUAL"),
    "logout": ("login", "LOGOUT_MANUAL"),
    "doctor": ("doctor", "MANUAL"),
    "prompt": ("prompt", "MANUAL"),
    "completion": ("completion", "MANUAL"),
}
#: Words that follow a command, where they are no table of subcommands.
_WORDS = {"lab": ("serve", "check"), "config": ("agents", "daemon", "check"), "completion": SHELLS}


class CompletionEntry(msgspec.Struct, frozen=True):
    """A command line to complete: the command, its subcommand or "", and what may follow."""

    command: str
    subcommand: str
    summary: str
    flags: Sequence[Flag]
    words: Sequence[tuple[str, str]] = ()


def manual_of(command: str) -> Manual | CommandGroup:
    """Return the manual of a command, or its group of subcommands."""
    module, name = COMMANDS[command]
    found: Manual | CommandGroup = getattr(__import__(f"zot.commands.{module}", fromlist=[name]), name)
    return found


def entries() -> Iterator[CompletionEntry]:
    """Return every command with its flags and words: first the flags without a command, then the commands."""
    flags_of_both = {flag.name: flag for flag in (*once.MANUAL.flags, *terminal.MANUAL.flags)}
    yield CompletionEntry(
        "", "", "", [*flags_of_both.values()], [(name, _summary(manual_of(name))) for name in COMMANDS]
    )
    for command in COMMANDS:
        manual = manual_of(command)
        if isinstance(manual, Manual):
            words = [(word, "") for word in _WORDS.get(command, ())]
            groups = [_daemon_group()] if command == "daemon" else []
            words += [(one.name, one.summary) for group in groups for one in group.subcommands.values()]
            yield CompletionEntry(command, "", _summary(manual), manual.flags, words)
        else:
            groups = [manual]
            words = [(one.name, one.summary) for one in manual.subcommands.values()]
            yield CompletionEntry(command, "", manual.summary, (), words)
        for group in groups:
            for one in group.subcommands.values():
                yield CompletionEntry(command, one.name, one.summary, group.manual(one).flags)


def _daemon_group() -> CommandGroup:
    return GROUP


def _summary(manual: Manual | CommandGroup) -> str:
    """Return the first sentence."""
    return manual.summary.partition("\n")[0].partition(". ")[0].rstrip(".") + "."


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    _, words = given
    if len(words) != 1 or words[0] not in SHELLS:
        near = did_you_mean(words[0], SHELLS) if words else ""
        raise UsageError(f"name a shell: zot completion {', '.join(SHELLS[:-1])} or {SHELLS[-1]}{near}")
    sys.stdout.write(script(words[0]))
    return 0


def script(shell: str) -> str:
    """Return the completion script for a shell."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]([*entries()])


def _names(flag: Flag) -> list[str]:
    return [name for name in (flag.name, flag.short) if name]


def _choices(flag: Flag) -> Sequence[str]:
    return flag.parse.words if isinstance(flag.parse, Choice) else ()


def _is_file(flag: Flag) -> bool:
    return flag.value in ("FILE", "PATH")


#: How a shell completes words, directories, files, and what it cannot know.
_BASH_VALUES = ('compgen -W "{}"', "compgen -d", "compgen -f", "")
_ZSH_VALUES = ("compadd {}", "_files -/", "_files", "_message value")


def _values(found: Sequence[CompletionEntry], how: tuple[str, str, str, str]) -> dict[str, list[str]]:
    """Return the flags that need a value, by how the shell completes that."""
    words, directories, files, unknown = how
    kinds: dict[str, list[str]] = {}
    every = {name: flag for entry in found for flag in entry.flags for name in _names(flag)}
    for name, flag in every.items():
        if choices := _choices(flag):
            kinds.setdefault(words.format(" ".join(choices)), []).append(name)
        elif flag.value and not flag.value.startswith("["):
            kind = directories if flag.value == "DIR" else files if _is_file(flag) else unknown
            kinds.setdefault(kind, []).append(name)
    return kinds


def _specific_first(found: Sequence[CompletionEntry]) -> list[CompletionEntry]:
    return sorted(found, key=lambda entry: (not entry.command, not entry.subcommand))


def _bash(found: Sequence[CompletionEntry]) -> str:
    lines = ["# Completion of zot for bash.", "_zot() {", '    local cur=${COMP_WORDS[COMP_CWORD]} words="" at']
    lines += ["    COMPREPLY=()", '    case "${COMP_WORDS[COMP_CWORD-1]}" in']
    for how, names in _values(found, _BASH_VALUES).items():
        reply = f'mapfile -t COMPREPLY < <({how} -- "$cur"); ' if how else ""
        lines.append(f"        {'|'.join(names)}) {reply}return ;;")
    lines += ["    esac", '    at="${COMP_WORDS[1]} ${COMP_WORDS[2]}"', '    (( COMP_CWORD == 1 )) && at=" "']
    lines += ['    (( COMP_CWORD == 2 )) && at="${COMP_WORDS[1]} "', '    case "$at" in']
    for entry in _specific_first(found):
        words = " ".join([*(word for word, _ in entry.words), *(name for flag in entry.flags for name in _names(flag))])
        if entry.subcommand:
            pattern = f'"{entry.command} {entry.subcommand}"'
        else:
            pattern = f'"{entry.command} "*' if entry.command else "*"
        lines.append(f'        {pattern}) words="{words}" ;;')
    lines += ["    esac", '    mapfile -t COMPREPLY < <(compgen -W "$words --help --help-all" -- "$cur")', "}"]
    return "\n".join([*lines, "complete -o default -F _zot zot", ""])


def _zsh(found: Sequence[CompletionEntry]) -> str:
    lines = ["#compdef zot", "# Completion of zot for zsh.", "_zot() {", "    local -a names flags"]
    lines.append('    case "$words[CURRENT-1]" in')
    lines += [f"        {'|'.join(names)}) {how}; return ;;" for how, names in _values(found, _ZSH_VALUES).items()]
    lines += ["    esac", '    local at="$words[2] $words[3]"', '    (( CURRENT == 2 )) && at=" "']
    lines += ['    (( CURRENT == 3 )) && at="$words[2] "', '    case "$at" in']
    for entry in _specific_first(found):
        if entry.subcommand:
            pattern = f"'{entry.command} {entry.subcommand}'"
        else:
            pattern = f"'{entry.command} '*" if entry.command else "*"
        described = [(name, flag.help) for flag in entry.flags for name in _names(flag)]
        lines.append(f"        {pattern})")
        lines.append(f"            names=({' '.join(_described(*word) for word in entry.words)})")
        lines.append(f"            flags=({' '.join(_described(*flag) for flag in described)}) ;;")
    lines += ["    esac", "    flags+=('--help:Show the common flags and examples.' '--help-all:Show every flag.')"]
    lines += ["    if [[ $words[CURRENT] == -* ]]; then", "        _describe -o flag flags"]
    lines += ["    elif (( $#names )); then", "        _describe command names", "    else", "        _files", "    fi"]
    return "\n".join([*lines, "}", "compdef _zot zot", ""])


def _described(word: str, summary: str) -> str:
    return _quoted(f"{word}:{summary.replace(':', chr(92) + ':')}" if summary else word)


def _fish(found: Sequence[CompletionEntry]) -> str:
    lines = ["# Completion of zot for fish.", "complete -c zot -f"]
    for entry in found:
        if not entry.command:
            when = "__fish_use_subcommand"
        elif entry.subcommand:
            when = f"__fish_seen_subcommand_from {entry.command}; and __fish_seen_subcommand_from {entry.subcommand}"
        else:
            when = f"__fish_seen_subcommand_from {entry.command}"
        begin = f"complete -c zot -n {_quoted(when)}"
        for word, summary in entry.words:
            lines.append(f"{begin} -a {word}" + (f" -d {_quoted(summary)}" if summary else ""))
        for flag in entry.flags:
            short = f" -s {flag.short[1:]}" if flag.short else ""
            lines.append(f"{begin} -l {flag.name[2:]}{short}{_fish_value(flag)} -d {_quoted(flag.help)}")
    lines += ["complete -c zot -s h -l help -d 'Show the common flags and examples.'"]
    return "\n".join([*lines, "complete -c zot -l help-all -d 'Show every flag.'", ""])


def _fish_value(flag: Flag) -> str:
    if not flag.value:
        return ""
    if choices := _choices(flag):
        return f" -xa {_quoted(' '.join(choices))}"
    if flag.value == "DIR":
        return " -xa '(__fish_complete_directories)'"
    return " -rF" if _is_file(flag) else " -x"


def _quoted(text: str) -> str:
    """Quote for bash, zsh and fish."""
    return "'" + text.replace("'", "'\\''") + "'"
