"""The dashboard's assets: how they are served, and which of them the wheel contains."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from optional import needs

from .face import Face, faced

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[3]
ASSETS = ROOT / "src" / "zot" / "serve" / "web" / "assets"
FILES = sorted(ASSETS.iterdir())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def face(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Face]:
    async with faced(tmp_path_factory.mktemp("assets") / "home") as face:
        yield face


async def test_assets_are_cached_without_expiry_and_the_page_is_revalidated(face: Face) -> None:
    page = await face.ask(path="/web/")
    assert (page.status, page.headers["cache-control"]) == (200, "no-cache")
    again = await face.ask(path="/web/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    named = re.findall(r'(?:src|href)="(assets/[^"]+)"', page.body.decode())
    folder = named[0].rpartition("/")[0]
    assert len(named) == 3
    for one in FILES:
        told = await face.ask(path=f"/web/{folder}/{one.name}")
        if one.name == "index.html":
            assert told.status == 404
        else:
            assert (told.status, told.body) == (200, one.read_bytes())
            assert told.headers["cache-control"] == "public, max-age=31536000, immutable"


async def test_the_page_is_found_without_its_slash_and_below_a_path(tmp_path: Path, face: Face) -> None:
    assert (await face.ask(path="/web")).headers["location"] == "/web/"
    async with faced(tmp_path / "home", path="/agents") as below:
        assert (await below.ask(path="/agents/web")).headers["location"] == "/agents/web/"
        assert (await below.ask(path="/agents/web/")).status == 200
        assert (await below.ask(path="/web/")).status == 404


async def test_the_assets_are_small_and_name_no_other_host() -> None:
    assert sum(one.stat().st_size for one in FILES) < 150_000
    for one in FILES:
        text = one.read_text().replace('"http://www.w3.org/2000/svg"', "")
        assert re.findall(r"(?:https?|wss?):\/\/[\w.]+|[\"'(]\/\/\w", text) == [], one.name


FORBIDDEN = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextualFragment|DOMParser|"
    r"srcdoc|setHTMLUnsafe|localStorage|sessionStorage|document\.cookie|<script>|\sstyle=|\son\w+="
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
async def test_nothing_becomes_markup_or_code_and_nothing_is_stored(path: Path) -> None:
    allowed = {"localStorage"} if path.name == "prefs.js" else set()
    assert [one for one in re.findall(FORBIDDEN, path.read_text()) if one not in allowed] == []


@needs("node")
async def test_every_module_is_valid_and_passes_its_own_tests(tmp_path: Path) -> None:
    for path in (*FILES, *sorted((Path(__file__).parent / "assets").glob("*.test.mjs"))):
        shutil.copy(path, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    modules = [f"./{one.name}" for one in FILES if one.suffix == ".js" and one.name not in ("main.js", "connection.js")]
    (tmp_path / "modules.test.mjs").write_text("".join(f'import "{name}";\n' for name in modules))
    done = subprocess.run(
        ["node", "--test", "."], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout
    for name in ("main.js", "connection.js"):
        subprocess.run(["node", "--check", name], cwd=tmp_path, check=True, capture_output=True, timeout=30)


async def test_the_wheel_has_all_assets(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("zot/serve/web/assets/")}
    assert names == {f"zot/serve/web/assets/{one.name}" for one in FILES}
