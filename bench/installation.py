"""The zot under measurement: a wheel, installed and compiled in its own environment."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY")


@dataclass(frozen=True)
class Installation:
    """One installed zot. ``name`` is "zot" for the checkout itself."""

    name: str
    directory: Path

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    @property
    def zot(self) -> str:
        return str(self.directory / "bin" / "zot")

    @property
    def env(self) -> dict[str, str]:
        """A clean environment: no inherited variable changes how Python starts or where zot looks."""
        home = str(self.directory / "home")
        return {"PATH": os.defpath, "HOME": home, "LANG": "C.UTF-8", **dict.fromkeys(_KEYS, "bench")}


def install(name: str, source: Path, directory: Path) -> Installation:
    """Install ``source`` in a fresh environment. An editable install would not measure what users get."""
    venv.create(directory, with_pip=False, symlinks=True)
    installation = Installation(name, directory)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", installation.python]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    pinned = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}  # Also for the build requirements.
    subprocess.run([*pip, "install", "--no-warn-script-location", *constraints, str(source)], check=True, env=pinned)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([installation.python, "-m", "compileall", "-q", str(directory / "lib")], check=True, env=env)
    (directory / "home").mkdir()
    return installation
