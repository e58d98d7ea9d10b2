"""The daemon's dialect, about the model that a session works with, and those that it could. Does no I/O."""

from __future__ import annotations

from zot.wire.spelling import Spelled


class ModelEntry(Spelled, frozen=True):
    provider: str
    id: str
    name: str
    context_window: int


class Models(Spelled, frozen=True):
    session_id: str
    models: tuple[ModelEntry, ...]


class Overrides(Spelled, frozen=True):
    model: str | None = None
    reasoning: str | None = None
    model_provider: str | None = None


class Configure(Spelled, frozen=True):
    session_id: str
    overrides: Overrides = Overrides()


class Configured(Spelled, frozen=True):
    """``overrides`` are all that hold by now."""

    session_id: str
    overrides: Overrides
