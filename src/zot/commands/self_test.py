"""Could a request be answered? What `zot host --self-test` looks at. No model is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from zot.config import Config, resolve
from zot.errors import AgentError, ConfigError, KeyMissing
from zot.providers.vendors import VENDORS
from zot.runtime import check, check_journal


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. ``detail`` says what was found, or what is wrong."""

    name: str
    ok: bool
    detail: str


class Report(msgspec.Struct, frozen=True):
    """All of them. ``missing_required_env`` names variables of which one must be set."""

    ok: bool
    status: Literal["PASS", "FAIL"]
    provider: str
    model: str
    missing_required_env: tuple[str, ...]
    checks: tuple[Check, ...]


def examine(problem: ConfigError | None, settings: Mapping[str, Any]) -> Report:
    """Look at the configuration, the model and its key, and the journal. ``problem`` is one of the flags."""
    config, model, missing = Config(), "", False

    def configured() -> str:
        nonlocal config
        if problem is not None:
            raise problem
        config = resolve(settings)
        return "the flags and the file make sense"

    def chosen() -> str:
        nonlocal model, missing
        try:
            model = check(config)
        except KeyMissing:
            missing = True
            raise
        return f"{config.provider}, {model}"

    def kept() -> str:
        return asyncio.run(check_journal(config))

    checks = [_looked("configuration", configured)]
    if checks[0].ok:
        checks += [_looked("provider", chosen), _looked("journal", kept)]
    ok = all(one.ok for one in checks)
    needed = VENDORS[config.provider].key_names if missing else ()
    return Report(ok, "PASS" if ok else "FAIL", config.provider, model, tuple(needed), tuple(checks))


def _looked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except AgentError as problem:
        return Check(name, False, str(problem))
