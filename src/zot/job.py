"""What somebody asked a session to do: a prompt, a compact, or another conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zot.errors import AgentError, UserError
from zot.messages import ImageBlock, Message
from zot.surrogates import has_half


class Job:
    """A prompt or compact: waiting, running or over. Whoever asked hears when it starts, or that it never will.

    A prompt that ``stands`` in the transcript when its turn comes is gone on with, and not said again.
    One with a ``replacement`` runs nothing: these messages become the conversation, and it starts when they are. When
    it is over, ``error`` says why it failed and ``aborted`` that somebody ended it.
    """

    def __init__(
        self,
        text: str | None,
        images: Sequence[ImageBlock],
        *,
        started: Callable[[], None],
        dropped: Callable[[str], None],
        replacement: Sequence[Message] | None = None,
        stands: Callable[[], bool] = lambda: False,
    ) -> None:
        self.text = text
        self.replacement = replacement
        self.images = images
        self.started = started
        self.dropped = dropped
        self.stands = stands
        self.error: AgentError | None = None
        self.aborted = False

    @property
    def is_compact(self) -> bool:
        return self.text is None and self.replacement is None

    def fail(self, problem: AgentError) -> None:
        """It cannot run."""
        self.error = problem
        self.dropped(str(problem))

    def drop(self, reason: str) -> None:
        """It will never run."""
        self.aborted = True
        self.dropped(reason)


def checked_prompt(text: str, images: Sequence[ImageBlock]) -> tuple[str, tuple[ImageBlock, ...]]:
    """Return a prompt that can be stored, shown and sent. Raise UserError for one that cannot."""
    if not isinstance(text, str) or has_half(text):
        raise UserError("the message must be a str without lone surrogates (halves of a character)")
    if isinstance(images, ImageBlock) or not all(_is_image(image) for image in images):
        raise UserError('images must be a list of ImageBlock(mime_type="image/png", data=<bytes>)')
    if not text.strip() and not images:
        raise UserError("the prompt is empty; give it a message or images")
    return text, tuple(images)


def _is_image(image: object) -> bool:
    return isinstance(image, ImageBlock) and isinstance(image.data, bytes) and isinstance(image.mime_type, str)
