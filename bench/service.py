"""The model service of `model.py`, in a process of its own."""

from __future__ import annotations

from types import TracebackType

from installation import HERE, Installation
from process import Process


class Service:
    """Runs while its block does."""

    def __init__(self, installation: Installation) -> None:
        self._process = Process([installation.python, str(HERE / "model.py")], installation)
        self.port = int(self._process.read())

    def __enter__(self) -> Service:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._process.__exit__(kind, exc, at)

    def url(self, path: str) -> str:
        """Return where ``path`` is served."""
        return f"http://127.0.0.1:{self.port}{path}"


def floor(installation: Installation, service: Service, path: str) -> list[str]:
    """Return the command line of the floor, reading ``path``."""
    return [installation.python, str(HERE / "floor.py"), str(service.port), path]
