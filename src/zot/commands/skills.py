"""`zot skills`: list skills, and trust those of a project."""

from __future__ import annotations

import os
import sys

from zot.commands.subcommands import CommandGroup, CommandRequest, Subcommand
from zot.config.config import zot_home
from zot.config.skills import discover, load, trust_hint
from zot.config.trust import TrustStore
from zot.errors import ConfigError
from zot.text import printable


def _list(request: CommandRequest) -> int:
    home = zot_home(os.environ)
    is_trusted = TrustStore(home).is_trusted_skill if home is not None else lambda *_: False
    found = discover(cwd=os.getcwd(), home=home, is_trusted=is_trusted)
    for skill in found.skills:
        where = printable(skill.directory or "(built in)")
        sys.stdout.write(f"{skill.name}  {where}\n    {printable(' '.join(skill.description.split()))}\n")
    for directory in found.untrusted:
        sys.stdout.write(f"not trusted: {printable(directory)}; {trust_hint(directory)}\n")
    for problem in found.problems:
        sys.stderr.write(f"zot: {printable(problem)}\n")
    return 0


def _trust(request: CommandRequest) -> int:
    (directory,) = request.words
    load(directory)
    _store().trust(directory)
    sys.stdout.write(f"trusted {printable(directory)}\n")
    return 0


def _untrust(request: CommandRequest) -> int:
    (directory,) = request.words
    is_known = _store().untrust(directory)
    sys.stdout.write(f"{'no longer trusted' if is_known else 'was not trusted'}: {printable(directory)}\n")
    return 0 if is_known else 1


def _store() -> TrustStore:
    if (home := zot_home(os.environ)) is None:
        raise ConfigError("no directory to store trust in: set ZOT_HOME or HOME")
    return TrustStore(home)


GROUP = CommandGroup("zot skills", "Manage skills: directories with a SKILL.md that the model can read.", (
    Subcommand("list", "", "List skills, and which are not trusted.", _list),
    Subcommand("trust", "DIR", "Trust a project's skill, as its files are now.", _trust, (1, 1)),
    Subcommand("untrust", "DIR", "Withdraw the trust in a project's skill.", _untrust, (1, 1)),
), note="zot finds skills in $ZOT_HOME/skills, in the project's .zot/skills, and in each --skill DIR.",
   examples=(("zot skills list", "List the skills of this directory."),),
   more_examples=(
    ("zot skills trust .zot/skills/release", "Let the model read it, until one of its files changes."),
    ("zot skills untrust .zot/skills/release", "Hide it from the model again."),
))  # fmt: skip
main = GROUP.main
