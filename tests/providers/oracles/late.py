"""The vendors' packages, each loaded by the first test that uses it: to load all of them takes seconds."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """Stands for a module that is imported when first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # Whatever stands in a module is asked by pytest for its own marks.
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
