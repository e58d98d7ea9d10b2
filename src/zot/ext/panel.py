"""A panel: lines that an extension shows in zot, and the keys that a person presses there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from zot.ext.answers import Response, opened
from zot.wire.extension import AnyFromExtension, PanelClose, PanelRender
from zot.wire.extension import Panel as Opening

Draw: TypeAlias = Callable[[], Iterable[str]]
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


class Panel:
    """Made by `Extension.panel`. Its function says what it shows; ``title`` and ``footer`` may change.

    After each key it is drawn again, if it is still open.
    """

    def __init__(self, panel_id: str, draw: Draw, title: str, footer: str, send: Callable[..., None]) -> None:
        self.id = panel_id
        self.title = title
        self.footer = footer
        self.is_open = False
        self._draw = draw
        self._send: Callable[[AnyFromExtension], None] = send
        #: Called with the key and, for "rune", the character.
        self.on_key: Callable[..., Any] | None = None
        #: Called when the person has closed it.
        self.on_close: Callable[..., Any] | None = None

    def __call__(self) -> Iterable[str]:
        """Return what it shows, as its function says."""
        return self._draw()

    def key(self, handler: _Handler) -> _Handler:
        """Let ``handler(key, text)`` have the keys that are pressed in it. A decorator."""
        self.on_key = handler
        return handler

    def closed(self, handler: _Handler) -> _Handler:
        """Let ``handler()`` know that the person has closed it. A decorator."""
        self.on_close = handler
        return handler

    def open(self) -> Response:
        """Return what a command answers with to open it."""
        self.is_open = True
        return opened(Opening(self.id, self.title, tuple(self._draw()), self.footer))

    def render(self) -> None:
        """Draw it again, if it is open. From any thread."""
        if self.is_open:
            self._send(PanelRender(self.id, self.title, tuple(self._draw()), self.footer))

    def close(self) -> None:
        """Close it, if it is open."""
        if self.is_open:
            self.is_open = False
            self._send(PanelClose(self.id))
