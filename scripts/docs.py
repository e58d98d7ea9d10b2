"""Build the documentation as a static site with search, offline: build/docs/index.html.

A link or anchor without a target fails the build; so does a page that no index lists or that loads something from the
network. The navigation comes from docs/README.md and docs/decisions/README.md.

python scripts/docs.py            or: make docs
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from pygments.lexers import TextLexer, find_lexer_class_by_name
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "build" / "docs"
INDEX, DECISIONS = "docs/README", "docs/decisions/README"
#: Pages outside docs/, in the order of the navigation.
MORE = ("README.md", "examples/README.md", "examples/*/README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
SETTINGS = {
    "project": "zot",
    "extensions": ["myst_parser"],
    "include_patterns": ["docs/**", *MORE],
    "exclude_patterns": [".venv", ".git", "build", "dist", "src", "tests", "bench", "**/node_modules"],
    "root_doc": INDEX,
    "html_theme": "alabaster",
    "html_theme_options": {"show_powered_by": False, "page_width": "1100px", "sidebar_width": "250px"},
    "html_sidebars": {"**": ["about.html", "searchbox.html", "navigation.html"]},
    "html_title": "zot",
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "html_copy_source": False,
    "smartquotes": False,
    "myst_heading_anchors": 6,
}
#: Addresses that a browser loads by itself, in a page or in a style sheet. A link that a person clicks is not one.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=["'](?:https?:)?//[^"']*|"""
    r"""@import\s+["']?(?:url\()?["']?(?:https?:)?//[^"')]*|\burl\(["']?(?:https?:)?//[^"')]*"""
)


def navigation(index: str, page: str) -> str:
    """Return the table of contents, one a section, of the pages that an index links to."""
    trees, seen = [], set[str]()
    for section in re.split(r"^## ", page, flags=re.MULTILINE):
        title, _, text = section.partition("\n")
        found = [os.path.normpath(f"{Path(index).parent}/{link}") for link in re.findall(r"\]\(([^)#]+)\.md\b", text)]
        entries = [one for one in dict.fromkeys(found) if one not in seen and one != index]
        seen.update(entries)
        if entries:
            trees.append(toctree("" if title.startswith("# ") else title, entries))
    return "".join(trees)


def toctree(caption: str, entries: list[str]) -> str:
    """Return a table of contents that only the navigation shows."""
    options = f":caption: {caption}\n" if caption else ""
    lines = "\n".join(f"/{entry}" for entry in entries)
    return f"\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n{options}\n{lines}\n```\n"


def read(site: Sphinx, name: str, text: list[str]) -> None:
    """Prepare a page: navigation for the indexes, and no links to directories, which the site does not have."""
    here = (ROOT / name).parent
    text[0] = re.sub(
        r"\[([^\]]*)\]\(([^)#:]+)\)", lambda link: link[1] if (here / link[2]).is_dir() else link[0], text[0]
    )
    if name in (INDEX, DECISIONS):
        text[0] += navigation(name, text[0])
    if name == INDEX:
        pages = [str(path.relative_to(ROOT).with_suffix("")) for more in MORE for path in sorted(ROOT.glob(more))]
        text[0] += toctree(
            "Project", [page for page in pages if f"]({os.path.relpath(page, 'docs')}.md" not in text[0]]
        )
    for language in re.findall(r"^ *```(\w+)$", text[0], re.MULTILINE):
        try:
            find_lexer_class_by_name(language)
        except ClassNotFound:
            site.add_lexer(language, TextLexer)  # A conversation in one of our protocols.


def loaded_from_the_network() -> list[str]:
    """Return every address that a browser would load when it shows a page of the site."""
    files = [path for path in sorted(OUTPUT.rglob("*")) if path.suffix in (".html", ".css", ".js")]
    return [
        f"{path.relative_to(OUTPUT)}: {found[0]}"
        for path in files
        for found in LOADED.finditer(path.read_text(errors="replace"))
    ]


def main() -> int:
    """Build the site. Return the exit code."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    site = Sphinx(
        ROOT, None, OUTPUT, ROOT / "build" / "doctrees", "html",
        confoverrides=SETTINGS, freshenv=True, warningiserror=True, status=None, warning=sys.stderr,
    )  # fmt: skip
    site.connect("source-read", read)
    site.build()
    if site.statuscode:
        return site.statuscode
    if found := loaded_from_the_network():
        print("\n".join(found), "The site loads these from the network.", sep="\n", file=sys.stderr)
        return 1
    (OUTPUT / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=docs/README.html">\n')
    print(OUTPUT / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
