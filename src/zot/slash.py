"""Slash commands: what extensions offer to people, and what comes of running one."""

from __future__ import annotations

import msgspec


class CommandInfo(msgspec.Struct, frozen=True):
    """A command that people can run, and whose it is."""

    name: str
    description: str
    extension: str


class CommandAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an extension wants done: run ``prompt``, put ``insert`` into the editor, ``display`` a note, or nothing."""

    extension: str
    action: str
    prompt: str = ""
    insert: str = ""
    display: str = ""
    panel_id: str = ""
