"""Print the Pythons of this machine that zot runs on, one of each version, without the version of this one.

It looks on the PATH and into the versions of pyenv.

python scripts/pythons.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_OLDEST = (3, 11)
_NEWEST_MINOR = 30
_PATIENCE_S = 30
#: Fails where a virtual environment cannot be created.
_ASK = "import sys, venv, ensurepip; print(*sys.version_info[:3])"


def candidates() -> Iterator[str]:
    for minor in range(_OLDEST[1], _NEWEST_MINOR):
        if found := shutil.which(f"python3.{minor}"):
            yield found
    if pyenv := shutil.which("pyenv"):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, timeout=_PATIENCE_S, check=False).stdout
        yield from sorted(map(str, Path(root.strip()).glob("versions/*/bin/python3")))


def version_of(python: str) -> tuple[int, ...]:
    """Return its version; () if it does not run."""
    try:
        said = subprocess.run(
            [python, "-c", _ASK], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(map(int, said.split()))


def further() -> list[str]:
    """Return the newest of each version, oldest version first."""
    newest: dict[tuple[int, ...], tuple[tuple[int, ...], str]] = {}
    for python in candidates():
        version = version_of(python)
        if version >= _OLDEST and version[:2] != sys.version_info[:2]:
            newest[version[:2]] = max(newest.get(version[:2], (version, python)), (version, python))
    return [python for _, (_, python) in sorted(newest.items())]


if __name__ == "__main__":
    print(*further())
