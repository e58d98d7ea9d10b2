"""Completion scripts, used by the shells that they are for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from optional import needs
from zot.commands import completion
from zot.config.flags import Manual

#: A line that a user has typed, some words that must be offered, and some that must not.
LINES = {
    "zot ": (["rpc", "daemon", "completion"], ["status", "--ephemeral"]),
    "zot rp": (["rpc"], ["daemon"]),
    "zot rpc --prov": (["--provider"], ["--policy"]),
    "zot rpc --provider ": (["anthropic", "lab"], ["--model"]),
    "zot rpc --provider l": (["lab"], ["openai"]),
    "zot daemon ": (["status", "stop", "token"], ["rpc"]),
    "zot daemon stop --time": (["--timeout"], ["--tools"]),
    "zot daemon --ephe": (["--ephemeral"], ["--help"]),
    "zot sessions ex": (["export"], ["fork"]),
    "zot sessions export --ht": (["--html"], ["--all"]),
    "zot completion ": (["bash", "zsh", "fish"], ["rpc"]),
}
_PATIENCE_S = 60


GROUPS = [importlib.import_module(f"zot.commands.{name}").GROUP for name in
          ("daemon_manage", "ext", "fleet", "mcp", "sessions", "skills", "web")]  # fmt: skip


@pytest.mark.parametrize("manual", [group.manual(one) for group in GROUPS for one in group.subcommands.values()],
                         ids=lambda manual: manual.command)  # fmt: skip
def test_the_help_of_every_subcommand_has_examples_and_exit_codes(manual: Manual) -> None:
    text = manual.text()
    assert f"Examples:\n  {manual.command}" in text
    assert "Exit codes:\n  0 " in text


def assert_offered(line: str, offered: list[str]) -> None:
    wanted, unwanted = LINES[line]
    assert [word for word in wanted if word not in offered] == [], offered
    assert [word for word in unwanted if word in offered] == []


@needs("bash")
@pytest.mark.parametrize("line", LINES)
def test_bash_completes(line: str, tmp_path: Path) -> None:
    (tmp_path / "zot.bash").write_text(completion.script("bash"))
    words = " ".join(f"'{word}'" for word in line.split(" "))
    ask = f". ./zot.bash; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _zot; "
    ask += 'printf "%s\\n" "${COMPREPLY[@]}"'
    assert_offered(line, run(["bash", "-c", ask], tmp_path).split())


@needs("fish")
@pytest.mark.parametrize("line", LINES)
def test_fish_completes(line: str, tmp_path: Path) -> None:
    (tmp_path / "zot.fish").write_text(completion.script("fish"))
    said = run(["fish", "--no-config", "-c", f"source zot.fish; complete -C '{line}'"], tmp_path)
    assert_offered(line, [one.split("\t")[0] for one in said.split("\n")])


@needs("fish")
def test_the_line_in_the_help_works_in_a_new_home(tmp_path: Path) -> None:
    line = next(line for line, _ in completion.MANUAL.examples if "fish" in line)
    env = {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    asked = ["fish", "--no-config", "-c", f"{line}; complete -C 'zot rp'"]
    said = subprocess.run(asked, check=True, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=_PATIENCE_S)
    assert said.stderr == ""
    assert said.stdout.startswith("rpc\t")


#: Completes the line in an interactive zsh of its own, and prints the matches instead of showing them.
_ZSH = r"""
zmodload zsh/zpty
zpty inner zsh -f -i
inner() { zpty -w inner "$*"; }
inner "PS1=; autoload -Uz compinit; compinit -u -d ./dump; source ./zot.zsh"
inner 'bindkey "^I" complete-word; zstyle ":completion:*" list-grouped false; zstyle ":completion:*" format ""'
inner 'note() { print -l -- "MATCH "${^@} >>matches }'
inner 'compadd() { local -a shown; builtin compadd -O shown "$@"; note $shown; builtin compadd "$@" }'
inner 'ended() { print -- EN""DED }; zle -N ended; bindkey "^X" ended; print REA""DY'
zpty -r inner out '*READY*'
zpty -n -w inner "$1"$'\t'$'\C-x'
zpty -r inner out '*ENDED*'
zpty -d inner
grep '^MATCH ' matches
"""


@needs("zsh")
@pytest.mark.parametrize(
    "line", ["zot ", "zot rpc --provider ", "zot daemon stop --time", "zot sessions ex"]
)  # A second each.
def test_zsh_completes(line: str, tmp_path: Path) -> None:
    (tmp_path / "zot.zsh").write_text(completion.script("zsh"))
    said = run(["zsh", "-f", "-c", _ZSH, "zsh", line], tmp_path)
    assert_offered(line, [one.removeprefix("MATCH ") for one in said.split("\n")])


def run(words: list[str], directory: Path) -> str:
    done = subprocess.run(
        words, cwd=directory, capture_output=True, text=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL, check=False
    )
    assert done.stderr == ""
    return done.stdout
