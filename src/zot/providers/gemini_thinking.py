"""How much a Gemini model thinks, in the words of its generation. Facts alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zot.providers.base import Reasoning

_NUMBER = re.compile(r"gemini-(\d+)(?:\.(\d+))?(?![\d.])")
#: What an alias such as gemini-flash-latest stands for.
_NEWEST = (3, 0)

_BUDGETS: Mapping[Reasoning, int] = {"low": 2048, "medium": 8192, "high": 16384}
#: The least that 2.5 Pro takes: it cannot be told not to think.
_LEAST_OF_PRO = 128
_LEVELS: Mapping[Reasoning, str] = {"off": "LOW", "low": "LOW", "medium": "MEDIUM", "high": "HIGH"}
#: Models from generation 3 on always think. Every one takes LOW; these take less, and one does not know MEDIUM.
_WITH_MINIMAL = ("gemini-3-flash", "gemini-3.1-flash-lite", "gemini-3.5-flash-lite", "gemini-3.6-flash")
_WITHOUT_MEDIUM = ("gemini-3-pro",)

#: What is thought counts as output, so a short answer must leave room for it.
_ROOM_BEYOND_BUDGET = 4096
_ROOM: Mapping[str, int] = {"MINIMAL": 4096, "LOW": 8192, "MEDIUM": 16384, "HIGH": 32768}


def seals_calls(model: str) -> bool:
    """Whether the model refuses a call of its own that comes back without the signature of its thought."""
    return (_generation(model) or (0, 0)) >= (3, 0)


def thinking(model: str, reasoning: Reasoning) -> tuple[dict[str, Any], int]:
    """Return the ``thinkingConfig``, empty if there is nothing to say, and how many tokens it needs at least."""
    generation = _generation(model)
    shown = {} if reasoning == "off" else {"includeThoughts": True}
    if generation is None or generation < (2, 5):
        return shown, 0
    if generation < (3, 0):
        budget = _BUDGETS.get(reasoning, _LEAST_OF_PRO if "-pro" in model else 0)
        return {"thinkingBudget": budget, **shown}, budget and budget + _ROOM_BEYOND_BUDGET
    level = _level(model, reasoning)
    return {"thinkingLevel": level, **shown}, _ROOM[level]


def _level(model: str, reasoning: Reasoning) -> str:
    if reasoning == "off" and model.startswith(_WITH_MINIMAL):
        return "MINIMAL"
    if reasoning == "medium" and model.startswith(_WITHOUT_MEDIUM):
        return "HIGH"
    return _LEVELS[reasoning]


def _generation(model: str) -> tuple[int, int] | None:
    """Return (2, 5) for gemini-2.5-pro; None if it is no Gemini, or one that follows no such order."""
    found = _NUMBER.match(model)
    if found is None:
        return _NEWEST if model.startswith("gemini-") and model.endswith("-latest") else None
    return int(found[1]), int(found[2] or 0)
