"""Programs that only some checks need. Where one is missing its checks are not collected, but named at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TypeAlias, TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

#: The checks that cannot run, by the program they would need. A program may be missing without a named check.
Missing: TypeAlias = dict[str, list[str]]
MISSING: Missing = {}


def available(program: str, *, missing: Missing = MISSING) -> bool:
    """True if ``program`` can be run. What is not will be named at the end of the tests."""
    if shutil.which(program):
        return True
    missing.setdefault(program, [])
    return False


def needs(*programs: str, missing: Missing = MISSING) -> Callable[[Test], Test | None]:
    """Collect a test only where it can run: ``@needs("jq")``. Elsewhere its name is kept for the end."""

    def decide(test: Test) -> Test | None:
        absent = [program for program in programs if not available(program, missing=missing)]
        for program in absent:
            missing[program].append(test.__name__)
        return None if absent else test

    return decide


def report(missing: Missing) -> list[str]:
    """Return the lines that say what could not run, and why."""
    return [f"not run, because there is no {program}: {', '.join(tests)}" for program, tests in sorted(missing.items())]
