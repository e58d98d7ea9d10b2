"""Where each setting comes from: a flag, a variable, a table of config.toml, or zot itself. Shows no secret.

Nothing that starts an agent needs this: it looks at the same flags and tables once more, with other questions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from zot.config.agents import Agents
from zot.config.config import AGENT_FLAGS, Config, fitting, without_userinfo
from zot.config.credentials import find
from zot.config.vendors import VENDORS, endpoint
from zot.errors import AgentError
from zot.providers.models import Model
from zot.runtime.providers import models_of

#: What a flag without a value says of a setting that has another name.
_MEANT = {"tools": "no_tools"}
#: What nobody sets: it is what all the others were found in.
_UNSHOWN = ("env",)


class Origin(msgspec.Struct, frozen=True):
    """Where a value comes from. ``name`` is the flag, the variable, or the file and its table; "" for a default."""

    source: Literal["flag", "environment", "file", "default"]
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.source


class Setting(msgspec.Struct, frozen=True, rename={"origins": "from"}):
    """A value as it counts, and where it comes from: rules have several places. Of a key, only that there is one."""

    value: Any
    origins: tuple[Origin, ...]


_DEFAULT = (Origin("default"),)


def settings_of(agents: Agents, config: Config, given: Mapping[str, Any]) -> dict[str, Setting]:
    """Return every setting of ``config``, which is what ``given`` flags and the file of ``agents`` make together."""
    table = fitting(agents.table(config.agent).settings, given, config.environment)
    place = Origin("file", f"{agents.file.path} [agents.{config.agent}]")
    found = {
        name: Setting(getattr(config, name), _origins(name, given, table, place))
        for name in config.__struct_fields__
        if name not in _UNSHOWN
    }
    found |= {"cwd": replace(found["cwd"], value=_directory(config)), **_effective(config, found)}
    if found["provider"].origins == _DEFAULT and config.provider != Config().provider:
        found["provider"] = replace(found["provider"], origins=found["api_key"].origins)  # chosen for its key
    return found


def daemon_settings_of(agents: Agents) -> dict[str, Setting]:
    """Return every setting of the daemon, and whether the file says it."""
    place = (Origin("file", f"{agents.file.path} [daemon]"),)
    return {
        name: Setting(value, place if name in agents.file.daemon_names else _DEFAULT)
        for name, value in asdict(agents.daemon).items()
    }


def _origins(name: str, given: Mapping[str, Any], table: Mapping[str, Any], place: Origin) -> tuple[Origin, ...]:
    key = next((key for key in (_MEANT.get(name), name) if key in given), None)
    flag = () if key is None else (Origin("flag", _flag(key)),)
    if name == "policy":
        return (*flag, *((place,) if table.get(name) else ())) or _DEFAULT
    return flag or ((place,) if name in table else _DEFAULT)


def _directory(config: Config) -> str | None:
    try:
        return os.path.abspath(config.cwd or os.getcwd())
    except FileNotFoundError:  # It is gone. Who starts an agent there hears of it.
        return None


def _flag(key: str) -> str:
    return next(flag.name for flag in AGENT_FLAGS if flag.key == key)


def _effective(config: Config, found: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return what the service makes of what was left open: its model, its address, its API and its key."""
    shown = {
        "api_key": _api_key(config, ""),
        "base_url": replace(found["base_url"], value=_place(config.base_url or "") or None),
    }
    vendor = VENDORS.get(config.provider)
    if vendor is None:
        return shown
    model = _model(config)
    address = config.base_url or (None if model is None else model.base_url)
    try:
        where = endpoint(vendor, api=config.api, base_url=address or None, env=config.environment)
    except AgentError:
        return shown  # What does not go together is shown as it was given.
    return {
        "model": replace(found["model"], value=config.model or (None if model is None else model.id)),
        "api": replace(found["api"], value=where.api),
        "base_url": Setting(_place(where.base_url), _address_origin(config, model) or found["base_url"].origins),
        "api_key": _api_key(config, where.base_url),
    }


def _model(config: Config) -> Model | None:
    """Return the model that is asked, None if there is no such model: who wants to look may still look."""
    try:
        return models_of(config).find(config.model)
    except AgentError:
        return None


def _address_origin(config: Config, model: Model | None) -> tuple[Origin, ...]:
    """Return where an address comes from that is neither given nor the provider's own; nothing if it is."""
    if config.base_url:
        return ()
    if model is not None and model.base_url:
        return (Origin("file", "models.json"),)
    names = VENDORS[config.provider].base_url_names
    return tuple(Origin("environment", name) for name in names if config.environment.get(name))[:1]


def _place(base_url: str) -> str:
    """Return an address without what may be secret in it."""
    return without_userinfo(base_url).partition("?")[0]


def _api_key(config: Config, base_url: str) -> Setting:
    """Return whether there is a key. One that cannot be one is one, here."""
    vendor = VENDORS.get(config.provider)
    if config.api_key:
        return Setting("set", (Origin("flag", "--api-key"),))
    if vendor is None:
        return Setting(None, _DEFAULT)
    if name := next((name for name in vendor.key_names if config.environment.get(name)), None):
        return Setting("set", (Origin("environment", name),))
    stored = find(vendor, None, config.environment, base_url=base_url)
    return Setting(None, _DEFAULT) if stored is None else Setting("set", (Origin("file", stored.origin),))
