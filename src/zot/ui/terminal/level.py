"""How much something matters that is no part of the conversation."""

from __future__ import annotations

from typing import Literal, TypeAlias

Level: TypeAlias = Literal["info", "success", "warn", "error"]
