"""Going back to something that was said before."""

from __future__ import annotations

from zot.ui.terminal.entries_part import UserEntry
from zot.ui.terminal.terminal import Option, Terminal
from zot.ui.terminal.transcript import Transcript


async def jump(terminal: Terminal, transcript: Transcript) -> None:
    """Let the person choose among what they said, the newest first, and show it."""
    said = [entry for entry in transcript.entries if isinstance(entry, UserEntry)]
    if not said:
        terminal.note("nothing has been said yet")
        return
    options = [Option(entry, " ".join(entry.text.split())[:200]) for entry in reversed(said)]
    if (chosen := await terminal.choose("Go to", options)) is not None:
        transcript.show_entry(chosen)
