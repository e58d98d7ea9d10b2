"""Build the wheel and the sdist, check them, install both in fresh environments, and stop before uploading.

python scripts/release.py            `make release`
python scripts/release.py --build    only build and check; installs nothing
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import venv
import zipfile
from pathlib import Path
from urllib.parse import urljoin

from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
DISTRIBUTION = "zot-agent"
#: The files without which an installed zot does not work.
_IN_WHEEL = ("zot/py.typed", "zot/cli.py", "zot/providers/catalogue.json", "data/share/man/man1/zot.1")
#: Minutes, on a slow network.
_PATIENCE_S = 600


def version() -> str:
    """Return the version in the source."""
    [found] = re.findall(r'__version__ = "(.+?)"', (ROOT / "src" / "zot" / "version.py").read_text())
    return str(found)


def changes(of: str, text: str) -> str:
    """Return the section of a version in the changelog. Exit if it is missing, empty, or dated "unreleased"."""
    section = re.search(rf"^## {re.escape(of)}\b(.*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None or not section[2].strip():
        sys.exit(f"CHANGELOG.md has no section for {of}: add '## {of} (DATE)' with the changes that users see")
    if "unreleased" in section[1]:
        print(f"note: CHANGELOG.md still calls {of} unreleased; write the date before you upload")
    return section[2].strip()


def build(into: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist without isolation, with the pinned backend; return both."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(into), "-t", "sdist", "-t", "wheel"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_PATIENCE_S,
    )
    stem = f"{DISTRIBUTION.replace('-', '_')}-{version()}"
    return into / f"{stem}-py3-none-any.whl", into / f"{stem}.tar.gz"


def check(wheel: Path, sdist: Path) -> Metadata:
    """Check names, metadata and contents as an index would; return the metadata. Exit with the reason."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [path] = [name for name in names if name.endswith(".dist-info/METADATA")]
        raw = archive.read(path)
    metadata = Metadata.from_email(raw, validate=True)
    with tarfile.open(sdist) as packed:
        member = packed.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert member is not None
        in_sdist = Metadata.from_email(member.read(), validate=True)
    problems = [f"the wheel lacks {end}" for end in _IN_WHEEL if not any(name.endswith(end) for name in names)]
    problems += [f"the wheel has {name}" for name in names if name.startswith("tests/") or "__pycache__" in name]
    if (metadata.name, str(metadata.version)) != (DISTRIBUTION, version()):
        problems.append(f"the wheel is named {metadata.name} {metadata.version}")
    if (in_sdist.name, in_sdist.version) != (metadata.name, metadata.version):
        problems.append("the sdist and the wheel differ in name or version")
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        problems.append("the description is not the README")
    if problems:
        sys.exit("\n".join(problems))
    return metadata


def needed(names: list[str], extras: list[str]) -> set[str]:
    """Return all packages that these need, by what is installed here; ``extras`` are those of the first."""
    found, waiting = set[str](), [(name, extras if name == DISTRIBUTION else []) for name in names]
    while waiting:
        name, more = waiting.pop()
        for one in map(Requirement, importlib.metadata.requires(name) or []):
            if one.marker is not None and not any(one.marker.evaluate({"extra": extra}) for extra in ("", *more)):
                continue
            if (plain := canonicalize_name(one.name)) not in found or one.extras:
                found.add(plain)
                waiting.append((one.name, [*one.extras]))
    return {*found, *map(canonicalize_name, names)} - {DISTRIBUTION}


def locked(names: list[str]) -> str:
    """Return the entries of the lock for these packages. Exit if one is missing."""
    entries = re.split(r"^(?=\S+==)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    known = {canonicalize_name(entry.partition("==")[0]): entry for entry in entries[1:]}
    if missing := {*names} - {*known}:
        sys.exit(f"not in requirements.lock: {', '.join(sorted(missing))}; add it to constraints.txt, then: make lock")
    return entries[0] + "".join(known[name] for name in sorted(names))


def install(requirement: str, into: Path) -> str:
    """Install a requirement in a fresh environment; return what its `zot --version` prints.

    Whatever else is installed has a version and hash of the lock, also what builds the sdist.
    """
    venv.create(into, with_pip=True)
    pip = [str(into / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    extras = requirement.rpartition("[")[2].rstrip("]").split(",") if requirement.endswith("]") else []
    wanted = into / "locked.txt"
    wanted.write_text(locked([*needed([DISTRIBUTION, "hatchling"], extras)]))
    subprocess.run([*pip, "--require-hashes", "--requirement", str(wanted)], check=True, timeout=_PATIENCE_S)
    subprocess.run([*pip, "--no-index", "--no-build-isolation", requirement], check=True, timeout=_PATIENCE_S)
    done = subprocess.run(
        [str(into / "bin" / "zot"), "--version"], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def check_dashboard(environment: Path) -> int:
    """Start `zot web` of an installation without Node on its path; return how many files the page consists of.

    Exit if one cannot be fetched, or names another host.
    """
    home = environment / "home"
    home.mkdir()
    (home / "config.toml").write_text('[agents.default]\nprovider = "lab"\n')
    env = {"PATH": str(environment / "bin"), "HOME": str(home), "ZOT_HOME": str(home)}
    zot = str(environment / "bin" / "zot")
    started = subprocess.run(
        [zot, "web", "--port", "0"], env=env, check=True, capture_output=True, text=True, timeout=60
    )
    try:
        [page] = re.findall(r"(http://127\.0\.0\.1:\d+/web/)#pair=", started.stdout)
        waiting, found = ["./"], dict[str, str]()
        while waiting:
            name = waiting.pop()
            with urllib.request.urlopen(urljoin(page, name), timeout=60) as answer:
                found[name] = answer.read().decode()
            links = re.findall(r'(?:src|href)="(assets/[^"]+)"', found[name]) if name == "./" else []
            links += [urljoin(name, one) for one in re.findall(r'from "(\./\w+\.js)"', found[name])]
            waiting += [one for one in dict.fromkeys(links) if one not in found and one not in waiting]
    finally:
        subprocess.run([zot, "web", "stop"], env=env, check=True, capture_output=True, timeout=60)
    for name, text in found.items():
        if hosts := re.findall(r"(?:https?|wss?)://[\w.]+", text.replace('"http://www.w3.org/2000/svg"', "")):
            sys.exit(f"the dashboard's {name} names {hosts[0]}")
    return len(found)


def main() -> None:
    """Build, check, install, and say what is left to do."""
    section = changes(version(), (ROOT / "CHANGELOG.md").read_text())
    for old in DIST.glob("*"):
        old.unlink()
    wheel, sdist = build(DIST)
    metadata = check(wheel, sdist)
    print(f"built and checked: {wheel.name}, {sdist.name}")
    if "--build" not in sys.argv[1:]:
        extras = sorted(metadata.provides_extra or [])
        requirements = [str(wheel), str(sdist), *(f"{wheel}[{extra}]" for extra in extras)]
        with tempfile.TemporaryDirectory() as place:
            for number, requirement in enumerate(requirements):
                said = install(requirement, Path(place) / str(number))
                print(f"installed {Path(requirement).name}: {said}")
                if said != f"zot {version()}":
                    sys.exit(f"it should print: zot {version()}")
                if requirement.endswith("[web]"):
                    print(
                        f"its dashboard has {check_dashboard(Path(place) / str(number))} files, and names no other host"
                    )
    print(f"\nChanges in {version()}:\n\n{section}\n\nNothing was uploaded. To publish, upload both files in dist/.")


if __name__ == "__main__":
    main()
