"""Programs that only some checks need. Where one is missing its checks are not collected, but named at the end."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TypeAlias, TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

#: The checks that cannot run, by the program they would need.
Missing: TypeAlias = dict[str, list[str]]
MISSING: Missing = {}


def available(program: str, check: str = "", *, missing: Missing = MISSING) -> bool:
    """True if ``program`` can be run. Otherwise ``check``, what it was wanted for, is named at the end of the tests."""
    if shutil.which(program):
        return True
    missing.setdefault(program, []).append(check or f"what needs {program}")
    return False


def needs(*programs: str, missing: Missing = MISSING) -> Callable[[Test], Test | None]:
    """Collect a test only where it can run: ``@needs("jq")``. Elsewhere its name is kept for the end."""

    def decide(test: Test) -> Test | None:
        found = [available(program, test.__name__, missing=missing) for program in programs]
        return test if all(found) else None

    return decide


def report(missing: Missing) -> list[str]:
    """Return the lines that say what could not run, and why."""
    return [f"not run, because there is no {program}: {', '.join(tests)}" for program, tests in sorted(missing.items())]
