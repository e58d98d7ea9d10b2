"""A pytest plugin for xdist workers: send one report per test, and none for start, set-up and tear-down.

By default a worker sends six messages per test; encoding and decoding them costs as much as many tests.
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
    """Wrap ``send`` so that it drops start messages and passed set-up and tear-down reports."""

    def send_news(name: str, **told: Any) -> None:
        if name != "logstart" and not (name == "testreport" and _is_as_ever(told["data"])):
            send(name, **told)

    return send_news


def _is_as_ever(report: dict[str, Any]) -> bool:
    return bool(report["when"] != "call" and report["outcome"] == "passed" and not report["sections"])
