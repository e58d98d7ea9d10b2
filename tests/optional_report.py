"""A pytest plugin: the last lines of a test run name the checks that could not run."""

from __future__ import annotations

import pytest

from optional import MISSING, report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in report(MISSING):
        terminalreporter.write_line(line, yellow=True)
