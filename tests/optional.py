"""Programs that only some tests need. Where one is missing, its tests are left out and listed; in CI the run fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

#: The tests that cannot run, by the program they need.
Missing: TypeAlias = dict[str, list[str]]
MISSING: Missing = {}


def available(program: str, check: str = "", *, missing: Missing = MISSING) -> bool:
    """Return whether ``program`` is installed. If not, note ``check``, the test that needs it, for the report."""
    if shutil.which(program):
        return True
    missing.setdefault(program, []).append(check or f"what needs {program}")
    return False


def needs(*programs: str, missing: Missing = MISSING) -> Callable[[Test], Test | None]:
    """Collect a test only where these programs are installed: ``@needs("jq")``. Elsewhere the report names it."""

    def decide(test: Test) -> Test | None:
        found = [available(program, test.__name__, missing=missing) for program in programs]
        return test if all(found) else None

    return decide


def report(missing: Missing) -> list[str]:
    """Return one line per missing program, with the tests that it kept from running."""
    return [f"not run, because there is no {program}: {', '.join(tests)}" for program, tests in sorted(missing.items())]


def must_have_all(env: Mapping[str, str]) -> bool:
    """Return whether a missing program fails the run: on a CI machine, which can install it."""
    return env.get("CI", "").lower() not in ("", "0", "false")
