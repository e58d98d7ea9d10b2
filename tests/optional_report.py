"""A pytest plugin: list the tests that a missing program kept from running; in CI, fail the run because of them."""

from __future__ import annotations

import os
from typing import Any

import pytest

from optional import MISSING, must_have_all, report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand a worker's list to its controller. In CI, fail the run if something is missing."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["missing"] = MISSING
    elif MISSING and must_have_all(os.environ) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over the list of a worker. All workers collect the same tests, so they have the same list."""
    MISSING.update(getattr(node, "workeroutput", {}).get("missing", {}))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    fatal = must_have_all(os.environ)
    for line in report(MISSING):
        terminalreporter.write_line(f"FAILED {line}" if fatal else line, red=fatal, yellow=not fatal)
