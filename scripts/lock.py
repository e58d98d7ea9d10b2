"""Write requirements.lock: the versions of constraints.txt, each with the hashes of all its files.

The files of every platform and Python are included, so one lock serves all. pip's own settings say where the index is;
no address is written into any file.

python scripts/lock.py            after a change of constraints.txt
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
_HEAD = """\
# Made by scripts/lock.py from constraints.txt. `make` installs this, and builds zot with what is in it.
--only-binary :all:
"""
_AT_ONCE = 8
_PATIENCE_S = 60


class _Links(HTMLParser):
    """The addresses on a page of an index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def normalised(name: str) -> str:
    """Return the name of a package as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """Return the pinned versions by name."""
    lines = CONSTRAINTS.read_text().split()
    return {normalised(name): version for name, _, version in (line.partition("==") for line in lines)}


def hashes(session: Any, indexes: Iterable[str], name: str, version: str) -> set[str]:
    """Return the SHA-256 hashes of all files of a version. Exit if an index cannot be read or has none."""
    found: set[str] = set()
    for index in indexes:
        at = f"{index.rstrip('/')}/{name}/" + ("index.html" if index.startswith("file:") else "")
        page = session.get(at, timeout=_PATIENCE_S, headers={"Accept": "text/html"})
        if page.status_code == 404:
            continue
        page.raise_for_status()
        links = _Links()
        links.feed(page.text)
        for link in links.found:
            file, digest = unquote(urlsplit(link).path.rpartition("/")[2]), urlsplit(link).fragment
            if digest.startswith("sha256=") and is_of(file, name, version):
                found.add(digest.removeprefix("sha256="))
    if not found:
        sys.exit(f"{name}=={version}: no index has a file with a hash")
    return found


def is_of(file: str, name: str, version: str) -> bool:
    """True if a file is the source or a wheel of a version."""
    if file.endswith(".whl"):
        named, built = file.split("-")[:2]
    else:
        named, _, built = file.removesuffix(".tar.gz").removesuffix(".zip").rpartition("-")
    return normalised(named) == name and built == version


def render() -> str:
    """Return the lock file."""
    from pip._internal.commands.download import DownloadCommand  # Nothing public tells where the index is.

    command = DownloadCommand("download", "")
    with command.main_context():
        options, _ = command.parse_args(["x"])
        session = command.get_default_session(options)
        indexes = command._build_package_finder(options=options, session=session).index_urls
        indexes = [one if "://" in one else Path(one).as_uri() for one in indexes]
        versions = pins()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(lambda one: hashes(session, indexes, *one), versions.items())
        entries = [
            f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{one}" for one in sorted(every))
            for (name, version), every in zip(versions.items(), found, strict=True)
        ]
    return _HEAD + "\n".join(entries) + "\n"


if __name__ == "__main__":
    text = render()
    LOCK.write_text(text)
    print(f"{LOCK.name}: {text.count('--hash')} hashes")
