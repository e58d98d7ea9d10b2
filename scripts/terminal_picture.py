"""Make docs/terminal.svg, the picture of the terminal in the README: a real session with the scripted model."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path

from zot.config.config import Config
from zot.ui.conversation import Conversation, Home
from zot.ui.local import LocalHome
from zot.ui.terminal.app import ZotApp
from zot.ui.terminal.styles import Look

ROOT = Path(__file__).resolve().parent.parent
SIZE = (100, 31)
PROMPT = "The greeting is rude. Make it friendly, and show me that it works."
SCRIPT = r"""
think "A greeting in Python; read it, change it, run it."
say "I look at it first."
call read {"path": "greet.py"}
---
say "It only says the name. I make it a greeting:"
call edit {"path": "greet.py", "edits": [{"oldText": "    return name", "newText": "    return f\"Hello, {name}!\""}]}
---
call bash {"command": "python3 -c 'import greet; print(greet.greet(\"Ada\"))'"}
---
say "## Done\n\n`greet` is **friendly** now:\n\n"
say "```python\ndef greet(name: str) -> str:\n    return f\"Hello, {name}!\"\n```\n"
usage input=9140 output=212
"""


async def picture(directory: Path) -> str:
    """Hold the conversation and return the screen at its end."""
    (directory / "greet.py").write_text("def greet(name: str) -> str:\n    return name\n")
    script = directory / "home" / "greeting.lab"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    env = {"PATH": os.environ["PATH"], "HOME": str(directory.parent), "ZOT_HOME": str(script.parent)}
    config = Config(provider="lab", script=str(script), cwd=str(directory), env=env, frozen_time="2026-01-01T12:00:00Z")
    home = LocalHome(config, ("provider", "script"))

    async def begin() -> Home:
        return home

    async def session(_: Home) -> Conversation:
        return await home.open()

    app = ZotApp(begin, session, look=Look())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(1.0)
        app.editor.insert(PROMPT)
        await pilot.press("enter")
        async with asyncio.timeout(60):
            while app.runs or "Done" not in "".join(entry.text for entry in app.transcript.entries):
                await pilot.pause(0.1)
        await pilot.pause(1.0)
        drawn = app.export_screenshot(title="zot")
    await app.close()
    return drawn


def without_fonts(drawn: str) -> str:
    """Return the picture without the fonts that it would fetch from elsewhere: any fixed one will do."""
    drawn = drawn.replace("<svg ", '<svg xml:space="preserve" ', 1)  # Some viewers drop blanks otherwise.
    drawn = re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    return drawn.replace("Fira Code", "ui-monospace, Menlo, Consolas")


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        project = Path(place) / "project"
        project.mkdir()
        os.environ["HOME"] = place
        drawn = asyncio.run(picture(project))
    (ROOT / "docs" / "terminal.svg").write_text(without_fonts(drawn))


if __name__ == "__main__":
    main()
