"""The TypeScript SDK: checks that need no Node, and its own tests where Node is installed."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, get_args

import msgspec

from harness import PATIENCE_S, environment
from optional import needs
from zot.wire import extension as wire

ROOT = Path(__file__).parents[2]
SDK = ROOT / "sdk" / "typescript"
SOURCE = (SDK / "zot-ext.js").read_text()


def test_the_types_are_the_ones_that_the_schema_makes() -> None:
    spec = spec_from_file_location("typescript_script", ROOT / "scripts" / "typescript.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PATH.read_text() == script.render(), "run: python scripts/typescript.py"


def test_every_frame_has_its_type() -> None:
    types = {*re.findall(r'^  type: "(\w+)";$', (SDK / "protocol.d.ts").read_text(), re.MULTILINE)}
    assert types == {wire.name_of(kind) for kind in get_args(wire.AnyFrame)}


def test_it_has_the_same_constants_as_zot() -> None:
    words = {
        name: tuple(json.loads(value)) for name, value in re.findall(r"^const ([A-Z]+) = (\[.*\]);$", SOURCE, re.M)
    }
    assert words == {"EVENTS": wire.EVENTS, "INTERCEPTED": wire.INTERCEPTED, "LEVELS": wire.LEVELS}


def test_it_accepts_the_same_names_as_zot() -> None:
    patterns = dict(re.findall(r"^  (\w+): /(.*)/,$", SOURCE, re.MULTILINE))
    kinds: dict[str, Any] = {
        "hello": wire.ExtensionName, "register_command": wire.CommandName, "register_tool": wire.ToolName,
    }  # fmt: skip
    theirs = {name: msgspec.json.schema(kind)["pattern"].removesuffix(r"(?!\n)") for name, kind in kinds.items()}
    assert patterns == theirs


def test_every_export_is_declared() -> None:
    for name in ("zot-ext", "testing"):
        source, declared = (SDK / f"{name}.js").read_text(), (SDK / f"{name}.d.ts").read_text()
        exported = {*re.findall(r"^export (?:async )?(?:function\*?|class|const) (\w+)", source, re.MULTILINE)}
        assert exported == {*re.findall(r"^export (?:class|function) (\w+)", declared, re.MULTILINE)}


def test_it_needs_nothing_but_node() -> None:
    package = json.loads((SDK / "package.json").read_text())
    assert "dependencies" not in package
    imported = {*re.findall(r'from "([^"]+)"', SOURCE + (SDK / "testing.js").read_text())}
    assert {name for name in imported if not name.startswith("node:")} == set()


@needs("node")
def test_its_own_tests_pass() -> None:
    done = subprocess.run(
        ["node", "--test", "test/"], cwd=SDK, env=environment({}), capture_output=True, timeout=4 * PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode()
