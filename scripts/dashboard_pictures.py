"""Make pictures of the dashboard at three sizes, light and dark, in a real browser with the scripted model.

``python scripts/dashboard_pictures.py DIRECTORY`` saves all of them there; ``--readme`` saves docs/dashboard.png alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import Browser, Page, browsing  # noqa: E402
from serve.web.face import Client, Face, faced  # noqa: E402
from zot.config.pairing import open_pairing  # noqa: E402
from zot.config.tokens import path_in  # noqa: E402
from zot.wire.daemon import ROLES  # noqa: E402

SIZES = {"phone": (390, 844), "tablet": (820, 1100), "wide": (1440, 900)}
README = ROOT / "docs" / "dashboard.png"
CODE = '''def greet(name: str, *, loud: bool = False) -> str:
    """Return a greeting."""
    text = f"Hello, {name}!"
    return text.upper() if loud else text
'''
ANSWER = f"""## Done

`greet` is **friendly** now, and can be loud:

```python
{CODE}```

| call | result |
| --- | --- |
| `greet("Ada")` | Hello, Ada! |
| `greet("Ada", loud=True)` | HELLO, ADA! |

- [x] Tests pass
- [ ] Release notes"""
EDIT = {"path": "greet.py", "edits": [{"oldText": "    return name", "newText": CODE.partition("\n")[2].rstrip()}]}
SCRIPT = f"""
scene 'greeting'
think "Read it, change it, run it."
say "I look at it first."
call read {{"path": "greet.py"}}
---
say "It only says the name. I make it a greeting:"
call edit {json.dumps(EDIT)}
---
say {json.dumps(ANSWER)}
usage input=9140 output=812 cache_read=22000
scene 'nightly'
say "The **docs** step takes 6 of 9 minutes: it renders every page twice."
usage input=12000 output=900
scene 'dependencies'
say "Two are outdated. I update them."
call bash {{"command": "pip list --outdated && pip install --upgrade httptools"}}
scene 'module'
say "First I look at who imports it."
stall
scene 'format'
say "Each session is a list of rows; a row is an event or a change."
usage input=5000 output=600
scene
say "Yes."
"""
PROMPTS = {
    "The nightly build takes 9 minutes. Find out why.": True,
    "Update the dependencies, one at a time": False,
    "Rename the configuration module": False,
    "Explain the journal's format": True,
}
GREETING = "The greeting is rude. Make it friendly, and show me that it works."


async def begun(client: Client, directory: Path, prompt: str, *, wait: bool = True) -> str:
    """Start a session with a prompt; return its id."""
    made = await client.call("session/new", {"agentAlias": "default", "cwd": str(directory)})
    session = str(made["result"]["sessionId"])
    if wait:
        await client.prompt(session, prompt)
    else:
        params = {"sessionId": session, "prompt": prompt}
        await client.socket.send(json.dumps({"jsonrpc": "2.0", "method": "session/prompt", "params": params}))
        await client.call("session/rename", {"sessionId": session, "title": prompt})
    return session


async def staged(face: Face, client: Client, directory: Path) -> str:
    """Fill the daemon with sessions; return the one to show."""
    (directory / ".git").mkdir(parents=True)
    (directory / ".git" / "HEAD").write_text("ref: refs/heads/friendly-greeting\n")
    (directory / "greet.py").write_text("def greet(name: str) -> str:\n    return name\n")
    await client.call("initialize", {"protocolVersion": 1})
    for prompt, ends in PROMPTS.items():
        await begun(client, directory, prompt, wait=ends)
    return await begun(client, directory, GREETING)


async def opened(browser: Browser, face: Face, view: str, size: tuple[int, int]) -> Page:
    """Open a paired page at a view."""
    roles = [one for one in ROLES if one != "extend"]
    code = open_pairing(path_in(face.daemon.place.data_dir), name="", roles=roles, now=time.time())
    page = await browser.page(
        f"http://127.0.0.1:{face.port}/web/#pair={code}", context=await browser.profile(), width=size[0], height=size[1]
    )
    await page.until("document.getElementById('link').dataset.state === 'live'")
    await page.run(f"location.hash = {json.dumps(view)}")
    return page


async def settled(page: Page) -> None:
    """Wait until the page has drawn what it shows."""
    await page.until("document.querySelectorAll('#sessions a').length >= 5")
    await page.until("!document.querySelector('.conversation') || document.querySelectorAll('.answer').length >= 3")
    await page.until("!document.querySelector('.overview') || document.querySelectorAll('.overview .bar').length > 30")
    await page.run("document.querySelectorAll('.tool')[1]?.setAttribute('open', '')")
    await page.run("document.querySelector('.transcript')?.scrollTo(0, 0)")
    await page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")


async def pictures(directory: Path, *, readme: bool) -> None:
    """Save the pictures."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        policy = '[agents.default]\nprovider = "lab"\npolicy = ["bash=ask", "*=allow"]\napproval_timeout_s = 900\n'
        home = place / "home"
        home.mkdir()
        (home / "config.toml").write_text(policy)
        (home / "pictures.lab").write_text(SCRIPT)
        async with (
            faced(home, script=str(home / "pictures.lab")) as face,
            browsing(place / "browser") as browser,
            face.connected() as client,
        ):
            session = await staged(face, client, place / "projects" / "greeter")
            views = {
                "conversation": f"#/s/{session}",
                "list": "#/",
                "inbox": "#/inbox",
                "overview": "#/overview",
                "new": "#/new",
            }
            if readme:
                page = await opened(browser, face, views["conversation"], SIZES["wide"])
                await settled(page)
                await page.picture(README)
                return
            for size, pixels in SIZES.items():
                page = await opened(browser, face, views["list"], pixels)
                for view, address in views.items():
                    await page.run(f"location.hash = {json.dumps(address)}")
                    await settled(page)
                    for dark in (False, True):
                        await page.picture(directory / f"{view}-{size}{'-dark' if dark else ''}.png", dark=dark)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    is_readme = arguments == ["--readme"]
    target = ROOT if is_readme else Path(arguments[0])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(pictures(target, readme=is_readme))
