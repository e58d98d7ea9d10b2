"""`zot skills`: list skills, and trust those of a project."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from zot.config import flags
from zot.config.config import zot_home
from zot.config.skills import discover, load, trust_hint
from zot.config.trust import TrustStore
from zot.errors import ConfigError
from zot.text import printable

_USAGE = """\
usage: zot skills list
       zot skills trust DIR      use this skill of a project, as it is now
       zot skills untrust DIR    do not use it any more

Skills are directories with a SKILL.md: in $ZOT_HOME/skills, in .zot/skills of the project, and where --skill says."""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    settings, words = flags.parse(argv, (flags.Flag("--help", "this text", short="-h"),))
    if settings:
        sys.stdout.write(_USAGE + "\n")
        return 0
    home = zot_home(os.environ)
    match words:
        case ["list"]:
            return _list(home)
        case ["trust", directory]:
            load(directory)
            _store(home).trust(directory)
            sys.stdout.write(f"trusted {printable(directory)}\n")
            return 0
        case ["untrust", directory]:
            known = _store(home).untrust(directory)
            sys.stdout.write(f"{'no longer trusted' if known else 'was not trusted'}: {printable(directory)}\n")
            return 0 if known else 1
        case _:
            sys.stderr.write(f"zot: say what to do\n{_USAGE}\n")
            return 2


def _list(home: str | None) -> int:
    is_trusted = TrustStore(home).is_trusted if home is not None else lambda _: False
    found = discover(cwd=os.getcwd(), home=home, is_trusted=is_trusted)
    for skill in found.skills:
        where = printable(skill.directory or "(built in)")
        sys.stdout.write(f"{skill.name}  {where}\n    {printable(' '.join(skill.description.split()))}\n")
    for directory in found.untrusted:
        sys.stdout.write(f"not trusted: {printable(directory)}; {trust_hint(directory)}\n")
    for problem in found.problems:
        sys.stderr.write(f"zot: {printable(problem)}\n")
    return 0


def _store(home: str | None) -> TrustStore:
    if home is None:
        raise ConfigError("there is no home to remember it in: set ZOT_HOME or HOME")
    return TrustStore(home)
