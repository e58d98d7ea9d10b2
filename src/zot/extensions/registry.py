"""What one extension has registered and subscribed to, within limits."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from zot.errors import ProtocolError
from zot.wire.extension import EVENTS, INTERCEPTED, EventName, Intercepted, RegisterCommand, RegisterTool, Subscribe

MAX_COMMANDS: Final = 256
MAX_TOOLS: Final = 256
#: All that it registers, as it stood on the wire: tools are told to the model again and again.
MAX_BYTES: Final = 1024 * 1024


class Registry:
    """What is known of an extension. What does not fit is a ProtocolError, and changes nothing."""

    def __init__(self) -> None:
        self.commands: dict[str, RegisterCommand] = {}
        self.tools: dict[str, RegisterTool] = {}
        self.events: frozenset[EventName] = frozenset()
        self.intercept: frozenset[Intercepted] = frozenset()
        self.subscribed = False
        self._bytes = 0

    def add_command(self, command: RegisterCommand, size: int) -> None:
        """Take a command; ``size`` is how long its line was."""
        if command.name in self.commands:
            raise ProtocolError(f"register_command: {command.name} is already registered")
        if len(self.commands) >= MAX_COMMANDS:
            raise ProtocolError(f"register_command: more than {MAX_COMMANDS} commands")
        self._weigh("register_command", size)
        self.commands[command.name] = command

    def add_tool(self, tool: RegisterTool, size: int) -> RegisterTool:
        """Take a tool, and return it with a schema that model services take."""
        if tool.name in self.tools:
            raise ProtocolError(f"register_tool: {tool.name} is already registered")
        if len(self.tools) >= MAX_TOOLS:
            raise ProtocolError(f"register_tool: more than {MAX_TOOLS} tools")
        usable = msgspec.structs.replace(tool, schema=_usable(tool.name, tool.schema))
        self._weigh("register_tool", size)
        self.tools[tool.name] = usable
        return usable

    def subscribe(self, wanted: Subscribe) -> list[str]:
        """Take a subscription; return the names in it that mean nothing here."""
        if self.subscribed:
            raise ProtocolError("subscribe: it has subscribed already")
        self.subscribed = True
        self.events = frozenset(name for name in EVENTS if name in wanted.events)
        self.intercept = frozenset(name for name in INTERCEPTED if name in wanted.intercept)
        unknown = {*wanted.events, *wanted.intercept} - {*self.events, *self.intercept}
        return sorted(unknown)

    def _weigh(self, kind: str, size: int) -> None:
        if self._bytes + size > MAX_BYTES:
            raise ProtocolError(f"{kind}: more than {MAX_BYTES} bytes of registrations")
        self._bytes += size


def _usable(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that describes an object. One that does not would make services refuse the whole request."""
    if schema.get("type", "object") != "object":
        raise ProtocolError(f"register_tool: the schema of {name} must be of type object")
    if not isinstance(schema.get("properties", {}), dict):
        raise ProtocolError(f"register_tool: the properties in the schema of {name} must be an object")
    return {"type": "object", "properties": {}, **schema}
