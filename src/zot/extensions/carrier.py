"""What carries lines between zot and one extension: the pipes of its process, or a connection that it has made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias


class Carrier(Protocol):
    """A way to one extension and back, open from the start. See `process` and `link` for the two that there are."""

    #: What may be the reason if it does not get to say anything; "" or it begins with a separator.
    advice: str

    def send(self, data: bytes) -> None:
        """Bring it whole lines, after those before. Never waits; after its end does nothing."""

    async def read(self) -> bytes:
        """Return what it says next, cut anywhere; b"" when it will say no more. Cancelling loses nothing."""

    def arrived(self) -> int:
        """Return how many bytes `read` would return without waiting, as far as that is known."""

    async def gone(self, *, within_s: float | None) -> bool:
        """Wait until it is gone, at most ``within_s``. True if it is."""

    async def leftovers(self) -> Sequence[str]:
        """Return what it left running although it is gone itself."""

    def acknowledged(self) -> None:
        """It has heard that it shall end, and has no more to say."""

    def end(self) -> None:
        """Make it go, with all that it started. Returns at once; any number of times."""

    async def close(self) -> str:
        """Make it go and wait for that. Return how it went, such as "exited with 1". When cancelled, ends it anyway."""


#: Hears why a carrier cannot bring anything any more.
Deaf: TypeAlias = Callable[[str], None]
#: Opens a carrier. Raises OSError, ValueError or UserError if it cannot be opened.
Opening: TypeAlias = Callable[[Deaf], Awaitable[Carrier]]
