"""Tests of an extension without a process and without zot: a client that sends zot's frames and waits for answers.

    from zot.ext.testing import Client

    def test_weather() -> None:
        with Client(extension) as client:
            assert client.call("weather", city="Berlin").text == "Berlin: sunny"

Frames are encoded and decoded in both directions, so that a frame that zot would reject fails the test.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from zot.ext.serving import ExtensionService
from zot.wire import extension as wire

if TYPE_CHECKING:
    from zot.ext.extension import Extension

_Sent = TypeVar("_Sent", bound=wire.AnyToExtension)
_Received = TypeVar("_Received", bound=wire.AnyFromExtension)


class Result(msgspec.Struct, frozen=True):
    """Result of a tool: its text blocks joined by newlines, and all its blocks."""

    text: str
    is_error: bool
    content: tuple[wire.ContentBlock, ...]


class Client:
    """Stand-in for zot. A context manager that starts the extension and shuts it down at the end.

    ``data_dir`` defaults to a temporary directory. Handlers run in the calling thread.
    """

    def __init__(
        self, extension: Extension, *, data_dir: str = "", provider: str = "lab", model: str = "lab-1"
    ) -> None:
        self._recorder = _Recorder()
        #: All frames from the extension, in order.
        self.frames = self._recorder.frames
        #: Lines of the open panels, by id.
        self.panels = self._recorder.panels
        self._service = ExtensionService(extension, self._recorder)
        self._data_dir = data_dir
        self._provider, self._model = provider, model
        self._ids = map(str, itertools.count(1))
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        if not self._data_dir:
            self._directory = tempfile.TemporaryDirectory()
            self._data_dir = self._directory.name
        where = (os.getcwd(), self._data_dir, self._data_dir)
        self._service.begin()
        self._service.greeted(_sent(wire.HelloAck(wire.PROTOCOL_VERSION, "0", self._provider, self._model, *where)))
        return self

    def __exit__(self, *_: object) -> None:
        self._service.finish()
        self._recorder.close()
        if self._directory is not None:
            self._directory.cleanup()

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(frame.name for frame in self.frames if isinstance(frame, wire.RegisterCommand))

    @property
    def tools(self) -> dict[str, dict[str, Any]]:
        """Schemas of its tools, by name."""
        return {frame.name: frame.schema for frame in self.frames if isinstance(frame, wire.RegisterTool)}

    @property
    def notices(self) -> tuple[tuple[str, str], ...]:
        """Notices so far: levels and messages."""
        return tuple((frame.level, frame.message) for frame in self.frames if isinstance(frame, wire.Notify))

    def command(self, name: str, args: str = "") -> wire.CommandResponse:
        """Run a command as a user would."""
        assert name in self.commands, f"no command {name!r}; there are {', '.join(self.commands) or 'none'}"
        invoked = _sent(wire.CommandInvoked(next(self._ids), name, args.strip()))
        response = self._answered(self._service.command_response(invoked))
        if response.action == "open_panel" and response.open_panel is not None:
            self.panels[response.open_panel.id] = response.open_panel.lines
        return response

    def call(self, tool: str, /, **args: Any) -> Result:
        """Call a tool as the model would."""
        assert tool in self.tools, f"no tool {tool!r}; there are {', '.join(self.tools) or 'none'}"
        result = self._answered(self._service.tool_result(_sent(wire.ToolCall(next(self._ids), tool, args))))
        text = "\n".join(block.text for block in result.content if block.type == "text")
        return Result(text, result.is_error, result.content)

    def intercept(self, event: wire.Intercepted, **about: Any) -> wire.EventInterceptResponse:
        """Request a decision about an event; ``about`` are the fields of `zot.ext.Intercept`."""
        subscribed = [frame for frame in self.frames if isinstance(frame, wire.Subscribe) and event in frame.intercept]
        assert subscribed, f"it does not intercept {event}"
        asked = _sent(wire.EventIntercept(next(self._ids), event, **about))
        return self._answered(self._service.decision(asked))

    def tell(self, event: wire.EventName, **about: Any) -> None:
        """Notify it of an event; ``about`` are the fields of `zot.ext.Event`."""
        subscribed = [frame for frame in self.frames if isinstance(frame, wire.Subscribe) and event in frame.events]
        assert subscribed, f"it does not subscribe to {event}"
        self._service.handle(_sent(wire.Event(event, **about)))

    def press(self, panel_id: str, key: wire.Key, text: str = "") -> tuple[str, ...] | None:
        """Press a key in an open panel and return its new lines; None if it was closed."""
        assert panel_id in self.panels, f"no panel {panel_id!r} is open"
        self._service.handle(_sent(wire.PanelKey(panel_id, key, text)))
        return self.panels.get(panel_id)

    def close_panel(self, panel_id: str) -> None:
        """Close a panel as a user would."""
        del self.panels[panel_id]
        self._service.handle(_sent(wire.PanelClose(panel_id)))

    def _answered(self, frame: _Received) -> _Received:
        answer = _received(frame)
        self.frames.append(answer)
        return answer


class _Recorder:
    """Surroundings of the service under test: records frames, runs coroutines in the calling thread."""

    def __init__(self) -> None:
        self.frames: list[wire.AnyFromExtension] = []
        self.panels: dict[str, tuple[str, ...]] = {}
        self._runner: asyncio.Runner | None = None

    def send(self, *frames: wire.AnyFromExtension) -> None:
        for frame in map(_received, frames):
            self.frames.append(frame)
            if isinstance(frame, wire.PanelRender) and frame.panel_id in self.panels:
                self.panels[frame.panel_id] = frame.lines
            elif isinstance(frame, wire.PanelClose):
                self.panels.pop(frame.panel_id, None)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()


def _sent(frame: _Sent) -> _Sent:
    """Return a frame as the extension decodes it."""
    read = wire.decode_to_extension(wire.encode_frame(frame))
    assert isinstance(read, type(frame))
    return read


def _received(frame: _Received) -> _Received:
    """Return a frame as zot decodes it. Raise ProtocolError if zot would reject it."""
    read = wire.decode_from_extension(wire.encode_frame(frame))
    assert isinstance(read, type(frame))
    return read
