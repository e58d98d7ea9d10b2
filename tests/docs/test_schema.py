from __future__ import annotations

import json
import sys
import typing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from zot import events

SCRIPT = Path(__file__).parents[2] / "scripts" / "schema.py"


def test_the_schema_matches_the_types(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("schema_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "schema_script", script)  # msgspec looks there for the names in annotations
    spec.loader.exec_module(script)
    assert script.PATH.read_text() == script.render(), "run: python scripts/schema.py"
    assert script.HOST_PATH.read_text() == script.render_host(), "run: python scripts/schema.py"
    assert script.EXTENSION_PATH.read_text() == script.render_extension(), "run: python scripts/schema.py"
    assert script.DAEMON_PATH.read_text() == script.render_daemon(), "run: python scripts/schema.py"


@pytest.mark.parametrize("name", ["rpc", "host", "extension", "daemon"])
def test_every_type_has_a_description_of_its_own(name: str) -> None:
    definitions = json.loads((SCRIPT.parents[1] / "docs" / "schema" / f"{name}.json").read_text())["$defs"]
    told = {key: value.get("description", "") for key, value in definitions.items() if "$ref" not in value}
    assert [key for key, text in told.items() if not text] == []


@pytest.mark.parametrize("event", typing.get_args(events.AgentEvent), ids=lambda event: event.__name__)
def test_every_event_says_what_it_means(event: type[events.BaseEvent]) -> None:
    assert event.__doc__ not in (None, events.BaseEvent.__doc__)
