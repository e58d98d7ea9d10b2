"""Accessibility: axe-core finds nothing in any view, light and dark, narrow and wide; the keyboard reaches all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from browser import Browser, Page
from optional import needs
from serve.web.face import Face
from serve.web.pages import IDLE, begin, paired, submit

pytestmark = pytest.mark.asyncio(loop_scope="module")

AXE = Path(os.environ.get("AXE", "")) / "node_modules" / "axe-core" / "axe.min.js"
ANSWER = """# Title

text `code` [link](https://example.org)

```py
x = 1  # why
```

| a | b |
|-|-|
| 1 | 2 |

- [ ] task"""


async def violations(page: Page) -> list[str]:
    """Return axe-core's findings. It runs beside the page, whose own policy forbids foreign scripts."""
    tree = await page.send("Page.getFrameTree")
    world = await page.send("Page.createIsolatedWorld", frameId=tree["frameTree"]["frame"]["id"], worldName="axe")
    context = world["executionContextId"]
    await page.send("Runtime.evaluate", expression=AXE.read_text(), contextId=context)
    told = await page.send(
        "Runtime.evaluate",
        expression="axe.run(document).then((found) => JSON.stringify(found.violations.map((one) => "
        "[one.id, ...one.nodes.map((node) => node.html.slice(0, 200) + ' ' + (node.any[0]?.message ?? ''))])))",
        contextId=context, awaitPromise=True, returnByValue=True,
    )  # fmt: skip
    found: list[str] = json.loads(told["result"]["value"])
    return found


@needs("chromium", "npm")
@pytest.mark.parametrize(("width", "dark"), [(360, False), (1400, True), (1400, False)])
async def test_axe_finds_nothing(browser: Browser, face: Face, tmp_path: Path, width: int, dark: bool) -> None:
    assert AXE.exists(), "set AXE to the directory where npm has installed axe-core"
    page = await paired(browser, face, width=width)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await page.send(
        "Emulation.setEmulatedMedia", features=[scheme, {"name": "prefers-reduced-motion", "value": "reduce"}]
    )
    await begin(page, f'!script think hm ;; say {json.dumps(ANSWER)} ;; call read {{"path": "nothing"}}', tmp_path)
    await page.until(IDLE)
    assert await violations(page) == []
    await submit(page, "!bash echo asked")
    await page.until("document.querySelector('.approval button')")
    assert await violations(page) == []
    for view in ("inbox", "overview", "new", ""):
        await page.run(f"location.hash = '#/{view}'")
        await page.until("document.querySelector('#inbox .request, .overview table, #first, #sessions a')")
        assert await violations(page) == [], view
    await page.run("document.getElementById('settings').click()")
    await page.until("document.querySelector('dialog')")
    assert await violations(page) == []
    await page.run("document.querySelector('dialog').close(); location.hash = '#/inbox'")
    await page.until("document.querySelector('#inbox .request button')")
    await page.run("document.querySelector('#inbox .request').focus()")
    await page.press("r")
    await page.until("!document.querySelector('#inbox .request:not([data-settled])')")


@needs("chromium")
async def test_the_keyboard_alone_starts_a_session_and_decides(browser: Browser, face: Face) -> None:
    page = await paired(browser, face)
    await page.press("n")
    await page.until("document.activeElement.id === 'first'")
    await page.type("!bash echo by keyboard")
    await page.send("Input.dispatchKeyEvent", type="rawKeyDown", key="Enter", windowsVirtualKeyCode=13, modifiers=2)
    await page.until("document.querySelector('.approval button')")
    await page.run("document.getElementById('main').focus()")
    await page.press("i")
    await page.until("document.activeElement.classList.contains('request')")
    await page.press("a")
    await page.until("document.querySelector('#nothing') && !document.querySelector('#nothing').hidden")
    await page.press("?")
    await page.until("document.querySelector('dialog .keys')")
