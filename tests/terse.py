"""A pytest plugin for the workers of a test run: it tells of each test once, and not of its beginning and its ends.

A worker sends six messages for each test, and to write and to read them takes as long as many a test.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") and config.getoption("durations") is None:
        for plugin in config.pluginmanager.get_plugins():
            if hasattr(plugin, "sendevent"):
                plugin.sendevent = _only_news(plugin.sendevent)


def _only_news(send: Any) -> Any:
    """Return what sends all but that a test begins, and that nothing was wrong before or after it."""

    def send_news(name: str, **told: Any) -> None:
        if name != "logstart" and not (name == "testreport" and _is_as_ever(told["data"])):
            send(name, **told)

    return send_news


def _is_as_ever(report: dict[str, Any]) -> bool:
    return bool(report["when"] != "call" and report["outcome"] == "passed" and not report["sections"])
