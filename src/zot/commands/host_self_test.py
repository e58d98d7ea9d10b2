"""`zot host --self-test`: checks the configuration without calling a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from zot.config.config import Config, agent_names, journal_path, resolve
from zot.config.vendors import VENDORS
from zot.errors import AgentError, ConfigError, KeyMissing, UserError
from zot.journal.opening import open_journal
from zot.runtime.check import check, check_settings
from zot.runtime.provider_choice import unused_key


class Check(msgspec.Struct, frozen=True):
    """One check. ``detail`` is its result or the error."""

    name: str
    ok: bool
    detail: str


class Report(msgspec.Struct, frozen=True):
    """All checks. ``missing_required_env`` names variables of which one must be set."""

    ok: bool
    status: Literal["PASS", "FAIL"]
    provider: str
    model: str
    missing_required_env: tuple[str, ...]
    checks: tuple[Check, ...]


def examine(problem: ConfigError | None, settings: Mapping[str, Any]) -> Report:
    """Check the configuration, the model and its key, and the journal. ``problem`` is an error in the flags.

    Checks all agents; the report names the provider and model of the default one.
    """
    agents: dict[str, Config] = {}
    model, missing = "", ""

    def configured() -> str:
        if problem is not None:
            raise problem
        for name in agent_names(settings):
            with _named(name):
                config = resolve({**settings, "agent": name})
                check_settings(config)
                agents[name] = config
        return "the flags and the file are valid"

    def chosen() -> str:
        nonlocal model, missing
        remarks: list[str] = []
        for name, config in agents.items():
            with _named(name):
                try:
                    used = check(config)
                except KeyMissing:
                    missing = config.provider
                    raise
                if remark := unused_key(config):
                    remarks.append(remark if name == "default" else f"agent {name!r}: {remark}")
            model = model or used
        return "; ".join((f"{agents['default'].provider}, {model}", *dict.fromkeys(remarks)))

    def kept() -> str:
        return asyncio.run(_check_journal(agents["default"]))

    checks = [_checked("configuration", configured)]
    if checks[0].ok:
        checks += [_checked("provider", chosen), _checked("journal", kept)]
    ok = all(one.ok for one in checks)
    provider = agents["default"].provider if "default" in agents else settings.get("provider", "")
    needed = VENDORS[missing].key_names if missing else ()
    return Report(ok, "PASS" if ok else "FAIL", provider, model, tuple(needed), tuple(checks))


@contextmanager
def _named(agent: str) -> Iterator[None]:
    """Prefix an error with the agent's name, unless it is the default agent."""
    try:
        yield
    except KeyMissing as problem:
        raise problem if agent == "default" else KeyMissing(f"agent {agent!r}: {problem}") from None
    except UserError as problem:
        raise problem if agent == "default" else ConfigError(f"agent {agent!r}: {problem}") from None


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except AgentError as problem:
        return Check(name, False, str(problem))


async def _check_journal(config: Config) -> str:
    """Return the journal's path after checking that it can be written. Raise ConfigError, StoreFailed."""
    journal = await open_journal(journal_path(config))
    try:
        await journal.writing(lambda connection: None)
    finally:
        await journal.close()
    return journal.path
