"""What a tool is, to the agent: a name, a schema, and one way to run it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from zot.errors import ToolFailed
from zot.messages import ImageBlock, TextBlock, ToolSpec
from zot.store import Wrote

Output: TypeAlias = tuple[TextBlock | ImageBlock, ...]


class FailedWith(ToolFailed):
    """A tool could not do what the model asked; the model hears, and sees, this ``output``."""

    def __init__(self, output: Output) -> None:
        super().__init__("\n".join(block.text for block in output if isinstance(block, TextBlock)))
        self.output = output


class ToolContext(msgspec.Struct, frozen=True):
    """Where a call runs. ``progress`` shows text while the tool is still running, and waits for slow watchers.

    What a call leaves running ends with the first of its ``owners``: keys for a session and a run, see `Processes`.
    A call that is cancelled may say its ``last_words``: what the model hears of it instead of that it was aborted.
    What it is about to change in a file it tells ``writing``, if there is somebody who keeps it, and waits.
    """

    cwd: str
    env: Mapping[str, str]
    progress: Callable[[str], Awaitable[None]]
    owners: tuple[str, ...] = ()
    last_words: Callable[[str], None] = lambda text: None
    writing: Callable[[Wrote], Awaitable[None]] | None = None


class Tool(Protocol):
    """Something the model can call. Stateless between calls, safe to run concurrently with itself."""

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def read_only(self) -> bool:
        """True when a call changes nothing, so that several may run at once."""

    async def run(self, args: dict[str, Any], context: ToolContext) -> Output:
        """Do it. Raise ToolFailed with what the model should hear, FailedWith with what it should see, too.

        When cancelled, leave nothing running.
        """
