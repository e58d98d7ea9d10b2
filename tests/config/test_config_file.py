"""Tables of config.toml, beside the settings that they set."""

import typing

import pytest

from zot.config.config import Config
from zot.config.file import AgentTable

_TABLE = typing.get_type_hints(AgentTable, include_extras=True)
_CONFIG = typing.get_type_hints(Config, include_extras=True)


@pytest.mark.parametrize("name", sorted(_TABLE.keys() & _CONFIG.keys()))
def test_an_agent_s_table_takes_the_values_of_the_setting(name: str) -> None:
    setting = _CONFIG[name]
    assert set(typing.get_args(_TABLE[name])) == set(typing.get_args(setting | None))
