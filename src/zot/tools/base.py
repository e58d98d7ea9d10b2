"""Tool interface, argument decoding, and tools that load on their first call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from zot.encoding import learned
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


T = TypeVar("T", bound=msgspec.Struct)


def decode_args(args: dict[str, Any], kind: type[T]) -> T:
    """Return ``args`` as a ``kind``. Raise ToolFailed that names the field and what was expected."""
    try:
        return msgspec.convert(args, learned(kind), strict=True)
    except msgspec.ValidationError as exc:
        raise ToolFailed(f"invalid arguments: {exc}") from exc


def to_utf8(text: str, field: str) -> bytes:
    """Return ``text`` as bytes. Raise ToolFailed if it holds half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise ToolFailed(f"invalid arguments: {field} has a lone surrogate at character {exc.start}") from exc


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
