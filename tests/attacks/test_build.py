"""The packages that developers and CI install: each is pinned with its hash, also those that build zot."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from optional import needs

ROOT = Path(__file__).parent.parent.parent


def test_the_lock_has_a_hash_for_every_pinned_version_and_names_no_index() -> None:
    pinned = {normalised(line) for line in (ROOT / "constraints.txt").read_text().split()}
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    entries = re.findall(r"^(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert {normalised(name) for name, _ in entries} == pinned, "run: make lock"
    rest = re.sub(r"^(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", "", text, flags=re.MULTILINE)
    assert [line for line in rest.split("\n") if line and not line.startswith("#")] == ["--only-binary :all:"]


def test_developer_and_build_requirements_are_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    needed = [*project["dependency-groups"]["dev"], *project["build-system"]["requires"]]
    needed += [*project["project"]["dependencies"], *(one for extra in extras for one in extra)]
    pinned = {normalised(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().split()}
    own = normalised(project["project"]["name"])  # An extra may be made of others.
    assert {normalised(re.split(r"[<>=!~\[; ]", one)[0]) for one in needed} - {own} <= pinned


def normalised(name: str) -> str:
    return name.lower().replace("_", "-")


@needs("make")
def test_every_installation_checks_hashes_or_looks_nowhere(tmp_path: Path) -> None:
    """The second one installs zot itself, with the tools that the first installed."""
    command = ["make", "-n", "-B", f"VENV={tmp_path}/venv", f"PYTHON={sys.executable}", f"{tmp_path}/venv/.installed"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    packages, zot = [line.split() for line in said.split("\n") if "pip install" in line]
    assert "--require-hashes" in packages
    assert packages[-2:] == ["--requirement", "requirements.lock"]
    assert {"--no-index", "--no-deps", "--no-build-isolation"} <= {*zot}
    assert zot[-2:] == ["--editable", "."]


def test_a_release_is_tried_with_packages_of_the_lock_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins versions: CI and maintainers who publish both run this."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    release = importlib.import_module("release")
    ran: list[list[str]] = []
    monkeypatch.setattr(release.venv, "create", lambda into, **_: into.mkdir())

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="zot 1\n")

    monkeypatch.setattr(release.subprocess, "run", run)
    for number, requirement in enumerate(["zot.tar.gz", "zot.whl", "zot.whl[all]"]):
        release.install(requirement, tmp_path / str(number))
        locked, own, _ = ran[-3:]
        assert "--require-hashes" in locked
        assert {"--no-index", "--no-build-isolation"} <= {*own}
        text = Path(locked[-1]).read_text()
        assert {"hatchling", "msgspec", "httptools"} <= {*re.findall(r"^([\w-]+)==", text, re.MULTILINE)}
        assert ("textual==" in text and "uvicorn==" in text) is requirement.endswith("[all]")
        assert text.count("==") <= text.count("--hash=")


def test_no_other_command_installs_packages() -> None:
    """In the scripts of CI, in the Makefile, and in `scripts`, which these call."""
    lines = [*(ROOT / "Makefile").read_text().split("\n"), *(ROOT / ".ci" / "run").read_text().split("\n")]
    found = [
        line for line in lines if re.search(r"\b(pip3?|pipx|uv|npm|npx|yarn|cargo|go) (install|add|ci|run|get)\b", line)
    ]
    # One is not part of the package: a page in the browser of the tests loads it. It is pinned, and runs no scripts.
    [page] = [line for line in found if "axe-core" in line]
    assert re.search(r" --ignore-scripts .* axe-core@\d+\.\d+\.\d+ ", page)
    assert len(found) == 3
    scripts = [path.name for path in (ROOT / "scripts").glob("*.py") if re.search(r'"(pip|npm|uv)"', path.read_text())]
    # The lock is made by downloading. The others install programs against which zot is tried, of exact versions and
    # without running their scripts; nothing of them is released.
    known = {"release.py", "lock.py", "lab_agents.py", "acp_clients.py", "manifests.py", "mcp_conformance.py"}
    assert {*scripts} <= known
    for name in ("lab_agents.py", "mcp_conformance.py"):
        assert '"--ignore-scripts"' in (ROOT / "scripts" / name).read_text()
