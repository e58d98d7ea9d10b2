"""A tool that is made for its first call: most runs of zot never call most tools, and loading them takes time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zot.messages import ToolSpec
from zot.tools.base import Output, Tool, ToolContext


class OnDemand:
    """The tool that ``make`` makes, once, and of which everybody may know ``spec`` and ``read_only`` before."""

    def __init__(self, spec: ToolSpec, make: Callable[[], Tool], *, read_only: bool = False) -> None:
        self.spec = spec
        self.read_only = read_only
        self._make = make
        self._made: Tool | None = None

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Run the tool, as `Tool.run` promises."""
        if self._made is None:
            self._made = self._make()
        return await self._made.run(args, context)
