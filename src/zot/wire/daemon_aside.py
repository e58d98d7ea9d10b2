"""The daemon's dialect, about questions by the way: what is taken and answered. Does no I/O."""

from __future__ import annotations

from zot.wire.daemon_types import PromptId, Used
from zot.wire.spelling import Spelled


class Ask(Spelled, frozen=True):
    """``prompt_id`` is what the client calls it, so that it can be taken back."""

    session_id: str
    question: str
    prompt_id: PromptId | None = None


class Answered(Spelled, frozen=True):
    session_id: str
    content: str
    usage: Used
