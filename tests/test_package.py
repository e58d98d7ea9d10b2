"""The wheel and the sdist: their names and files, and that zot runs when either is installed."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import PATIENCE_S, environment
from zot.version import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
RELEASE = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "release.py")))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    wheel, sdist = RELEASE.build(tmp_path_factory.mktemp("dist"))
    return wheel, sdist


def test_the_files_are_what_an_index_accepts(built: tuple[Path, Path]) -> None:
    metadata = RELEASE.check(*built)
    assert (metadata.name, str(metadata.version)) == ("zot-agent", __version__)
    assert sorted(metadata.provides_extra) == sorted(EXTRAS)


@pytest.mark.parametrize("kind", ["wheel[all]"])
def test_zot_runs_from(kind: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    """Requirements come from the environment of the tests, so no network is needed; a missing one fails the install.

    `make release`, which CI runs, installs the wheel, the sdist and each extra from the index.
    """
    name, bracket, extra = kind.partition("[")
    file = built[0] if name == "wheel" else built[1]
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "requirements.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index", "--no-build-isolation"]
    quietly = ["--quiet", "--disable-pip-version-check", "--no-compile", "--ignore-installed", "--no-deps"]
    run([*pip, *quietly, str(file)])
    assert (packages / "zot" / "cli.py").exists()
    # Resolves and checks the requirements of the extra; the file itself is in place already.
    run([*pip, "--quiet", "--disable-pip-version-check", "--dry-run", f"{file}{bracket}{extra}"])
    assert run([str(tmp_path / "venv" / "bin" / "zot"), "--version"]) == f"zot {__version__}\n"
    answer = run([str(tmp_path / "venv" / "bin" / "zot"), "-p", "!echo hello", "--provider", "lab"])
    assert answer == "hello\n"


def test_the_extra_all_has_every_other_one() -> None:
    [everything] = EXTRAS["all"]
    assert everything == f"zot-agent[{','.join(sorted(set(EXTRAS) - {'all'}))}]"


def test_no_text_installs_a_package_of_another_name() -> None:
    """`zot` on the public index is not this program."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    for path in [*pages, *(ROOT / "src").rglob("*.py")]:
        for requirement in re.findall(
            r"\b(?:pip|pipx|uv tool|uv pip) install(?: -\S+)* ['\"]?([\w.-]+)", path.read_text("utf-8", "replace")
        ):
            assert requirement.split("[")[0] != "zot", path


def test_a_version_without_a_changelog_section_cannot_be_released() -> None:
    with pytest.raises(SystemExit, match=r"no section for 9\.9\.9"):
        RELEASE.changes("9.9.9", "# Changes\n\n## 0.1.0\n\nThe first.\n")
    with pytest.raises(SystemExit, match=r"no section for 0\.1\.0"):
        RELEASE.changes("0.1.0", "# Changes\n\n## 0.1.0\n\n## 0.0.9\n\nText.\n")
    assert RELEASE.changes("0.1.0", "# Changes\n\n## 0.1.0 (2026-12-01)\n\nThe first.\n") == "The first."


def run(words: list[str]) -> str:
    done = subprocess.run(words, env=environment({}), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", [".ci/run", ".github/workflows/ci.yml", ".pre-commit-config.yaml"])
def test_every_make_target_that_is_called_exists(path: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [line.partition("#")[0] for line in (ROOT / path).read_text().split("\n")]
    called = {
        word for line in lines for words in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", line) for word in words.split()
    }
    assert called
    assert called <= targets
