from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "schema.py"


def test_the_schema_is_the_one_that_the_types_make(monkeypatch: pytest.MonkeyPatch) -> None:
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
