from __future__ import annotations

import asyncio

import pytest

from zot.providers.lab.script import Script
from zot.providers.lab.service import Service
from zot.providers.lab.transport import LabTransport

from .talk import Clock, body, called, read_all, said, send, texts, user

THREE = Script.parse("""
scene one
status 529
status_again_is_below = no
""".replace("status_again_is_below = no\n", "") + """
---
call bash {"command": "a"}
---
status 500
---
call bash {"command": "b"}
---
say "end of one"

scene two '(.*)'
say "two: $1"
""")


def transport(script: Script | str) -> LabTransport:
    return LabTransport(Script.parse(script) if isinstance(script, str) else script, sleep=Clock())
