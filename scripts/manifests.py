"""Check the Compose file and the Kubernetes manifests of examples/fleet against the published schemas.

The packages that ship the schemas are installed on the first run, in a directory of their own; pip's settings say from
where. Nothing else is loaded from the network.

python scripts/manifests.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FLEET = ROOT / "examples" / "fleet"
PLACE = ROOT / "build" / "manifests"
PACKAGES = ("check-jsonschema==0.39.0", "kubernetes-validate==1.37.0")
#: The versions of Kubernetes: the oldest that the project itself maintains at the time of the package, and the newest.
VERSIONS = ("1.34", "1.37")


def installed() -> Path:
    """Return the directory of the validators' programs, installed if needed."""
    programs = PLACE / "bin"
    stamp = PLACE / "-".join(PACKAGES).replace("==", "-")
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PLACE)], check=True)
        pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES], check=True)
        stamp.touch()
    return programs


def main() -> int:
    """Return 1 if a file is wrong; the validators say what."""
    programs = installed()
    compose = [
        str(programs / "check-jsonschema"),
        "--builtin-schema",
        "vendor.compose-spec",
        str(FLEET / "compose.yaml"),
    ]
    manifests = [str(programs / "kubernetes-validate"), "--strict"]
    checks = [compose, *([*manifests, "-k", one, str(FLEET / "kubernetes.yaml")] for one in VERSIONS)]
    return int(any(subprocess.run(words, check=False).returncode for words in checks))


if __name__ == "__main__":
    sys.exit(main())
