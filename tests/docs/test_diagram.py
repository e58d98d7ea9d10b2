"""docs/explanation/architecture.svg equals the drawing of scripts/diagram.py from the import table."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "diagram.py"))


def test_the_diagram_is_what_the_script_draws() -> None:
    assert SCRIPT["PATH"].read_text() == SCRIPT["render"](), "run: python scripts/diagram.py"


def test_the_page_shows_the_diagram() -> None:
    assert "](architecture.svg)" in (ROOT / "docs" / "explanation" / "architecture.md").read_text()


def test_the_diagram_shows_every_package_and_loads_nothing() -> None:
    picture = SCRIPT["PATH"].read_text()
    packages = {path.parent.name for path in (ROOT / "src" / "zot").glob("*/__init__.py")}
    assert packages <= {*re.findall(r"<text[^>]*>(\w+)</text>", picture)}
    assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"]


def test_omitted_arrows_follow_from_the_drawn_ones() -> None:
    table, _ = SCRIPT["read_table"]()
    drawn = {name: set(goals) for name, goals in SCRIPT["arrows"](table).items()}
    assert all(drawn[name] <= table[name] for name in table)
    reachable = SCRIPT["reachable"]
    assert {name: reachable(drawn, name) for name in table} == {name: reachable(table, name) for name in table}


def test_every_arrow_points_down() -> None:
    table, _ = SCRIPT["read_table"]()
    layer = SCRIPT["layers"](table)
    assert [(name, need) for name in table for need in table[name] if layer[name] <= layer[need]] == []
