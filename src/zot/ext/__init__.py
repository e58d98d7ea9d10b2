"""The SDK for extensions of zot: commands, tools, events, interceptors and panels, as functions with decorators.

    import zot.ext

    extension = zot.ext.Extension("weather", "1.0.0")

    @extension.tool
    def weather(city: str) -> str:
        \"\"\"Get the current weather for a city.\"\"\"
        return f"{city}: sunny"

    extension.run()

It loads msgspec and nothing else. `zot.ext.testing` tests an extension without a process.
"""

from __future__ import annotations

from zot.ext.declarations import Decision as Decision
from zot.ext.declarations import Image as Image
from zot.ext.declarations import Panel as Panel
from zot.ext.declarations import Response as Response
from zot.ext.declarations import ToolError as ToolError
from zot.ext.declarations import allow as allow
from zot.ext.declarations import block as block
from zot.ext.declarations import display as display
from zot.ext.declarations import insert as insert
from zot.ext.declarations import modify as modify
from zot.ext.declarations import noop as noop
from zot.ext.declarations import prompt as prompt
from zot.ext.declarations import replace as replace
from zot.ext.extension import Extension as Extension
from zot.wire.extension import Event as Event
from zot.wire.extension import EventIntercept as Intercept
from zot.wire.extension import HelloAck as Host

__all__ = [
    "Decision", "Event", "Extension", "Host", "Image", "Intercept", "Panel", "Response", "ToolError",
    "allow", "block", "display", "insert", "modify", "noop", "prompt", "replace",
]  # fmt: skip
