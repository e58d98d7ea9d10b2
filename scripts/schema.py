"""Write docs/schema/rpc.json, host.json, extension.json and daemon.json: the JSON Schema of every frame of zot RPC v1,
of host protocol v1, of the extension protocol v1 and of the daemon.

They are made from the types that encode the frames.

python scripts/schema.py
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from zot import events
from zot.commands import host_self_test
from zot.messages import ShownMessage
from zot.panels import CommandAnswer, CommandInfo, ResourceInfo
from zot.wire import (
    daemon,
    daemon_types,
    extension,
    host,
    jsonrpc,
    rpc,
    spelling,
    updates,
)
from zot.wire.daemon import TELLS_RESUMED, TELLS_STOPPING
from zot.wire.rpc import UNTOLD
from zot.wire.rpc_greeting import Command, Hello, HelloData, Ping, Response

PATH = Path(__file__).parents[1] / "docs" / "schema" / "rpc.json"
HOST_PATH = PATH.with_name("host.json")
EXTENSION_PATH = PATH.with_name("extension.json")
DAEMON_PATH = PATH.with_name("daemon.json")
_REF = "#/$defs/{name}"
_SENT_ID = str | int | float | None | msgspec.UnsetType
_ECHOED_ID = str | int | float | msgspec.UnsetType
_SEQ_AND_RUN = {
    "seq": {"type": "integer", "description": "With the feature `seq`: its number on this connection, from 1."},
    "run": {"type": "integer", "description": "With the feature `seq`: the number of the prompt or compact."},
}


class Started(msgspec.Struct, frozen=True):
    """The run has started."""

    started: bool


class Pong(msgspec.Struct, frozen=True):
    """zot answers."""

    pong: bool


class Chosen(msgspec.Struct, frozen=True):
    """The model in use from the next model call on."""

    model: str


class Transcript(msgspec.Struct, frozen=True):
    """The messages of the conversation."""

    messages: tuple[ShownMessage, ...]


class Models(msgspec.Struct, frozen=True):
    """The models known for the provider."""

    models: tuple[rpc.ModelData, ...]


class Commands(msgspec.Struct, frozen=True):
    """The slash commands of extensions."""

    commands: tuple[CommandInfo, ...]


class Resources(msgspec.Struct, frozen=True):
    """The resources of MCP servers that prompts can mention."""

    resources: tuple[ResourceInfo, ...]


#: The type of `data` in the response to a command; other commands have none.
_DATA: dict[type[Command], type[msgspec.Struct]] = {
    Hello: HelloData,
    rpc.Prompt: Started,
    rpc.Steer: Started,
    rpc.Compact: Started,
    rpc.GetState: rpc.StateData,
    rpc.GetMessages: Transcript,
    rpc.SetModel: Chosen,
    rpc.GetModels: Models,
    Ping: Pong,
    rpc.GetCommands: Commands,
    rpc.GetResources: Resources,
    rpc.RunCommand: CommandAnswer,
}


def schema() -> dict[str, Any]:
    """Return the schema."""
    commands = [_with_plain_id(kind, _SENT_ID) for kind in typing.get_args(rpc.AnyCommand)]
    response = _with_plain_id(Response, _ECHOED_ID)
    told = [kind for kind in typing.get_args(events.AgentEvent) if kind not in UNTOLD]
    kinds = [*told, *commands, response, *_DATA.values()]
    _, defs = msgspec.json.schema_components(kinds, ref_template=_REF)
    for kind in told:
        defs[kind.__name__]["properties"] |= _SEQ_AND_RUN
    defs["Response"]["allOf"] = [_data_of(command, data) for command, data in _DATA.items()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "zot RPC v1",
        "description": "Each line in either direction is one of these objects: see docs/reference/rpc.md.",
        "anyOf": [{"$ref": _REF.format(name=name)} for name in ("FromClient", "FromZot")],
        "$defs": {
            "FromClient": _one_of("What a client may send.", commands),
            "FromZot": _one_of("What zot sends.", [response, *told]),
            **defs,
        },
    }


def render() -> str:
    """Return the text of the file."""
    return _rendered(schema())


def host_schema() -> dict[str, Any]:
    """Return the schema of host protocol v1."""
    kinds = (host.Request, host.Response, host.EventLine, host_self_test.Report)
    _, definitions = msgspec.json.schema_components(kinds, ref_template=_REF)
    definitions["Request"]["required"] = ["request_id"]
    definitions["Request"]["properties"]["request_id"] = {"type": "string"}
    definitions["Request"]["properties"]["type"] = {
        "enum": [*typing.get_args(host.RequestType), None],
        "default": None,
    }
    for kind in (host.Response, host.Usage):  # Fields with a default are always written, except for one.
        required = [name for name in kind.__struct_fields__ if name != "replayed"]
        definitions[kind.__name__]["required"] = required
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "host protocol v1",
        "$defs": {
            **definitions,
            "Input": {"description": "A line of input.", "$ref": _REF.format(name="Request")},
            "Output": {
                "description": "A line of output; events only with --events.",
                "anyOf": [{"$ref": _REF.format(name=name)} for name in ("Response", "EventLine")],
            },
            "SelfTest": {"description": "What --self-test prints.", "$ref": _REF.format(name="Report")},
        },
    }


def render_host() -> str:
    """Return the text of the file for the host protocol."""
    return _rendered(host_schema())


def extension_schema() -> dict[str, Any]:
    """Return the schema of the extension protocol v1."""
    said = typing.get_args(extension.AnyFromExtension)
    told = typing.get_args(extension.AnyToExtension)
    _, definitions = msgspec.json.schema_components((*said, *told), ref_template=_REF)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "zot extension protocol v1",
        "description": "Each line in either direction is one of these objects: see docs/reference/extensions.md.",
        "anyOf": [{"$ref": _REF.format(name=name)} for name in ("FromExtension", "ToExtension")],
        "$defs": {
            "FromExtension": _one_of("What an extension may send.", [*said]),
            "ToExtension": _one_of("What zot sends.", [*told]),
            **definitions,
        },
    }


def render_extension() -> str:
    """Return the text of the file for the extension protocol."""
    return _rendered(extension_schema())


def daemon_schema() -> dict[str, Any]:
    """Return the schema of the daemon's protocol, in camelCase."""
    methods = daemon.METHODS.values()
    said = updates.Update.__subclasses__()
    kinds = [kind for method in methods for kind in (method.params, method.result)]
    others = [*said, jsonrpc.ErrorObject, daemon_types.FailedTurn, daemon_types.LogEvent, daemon_types.Changed]
    refs, definitions = msgspec.json.schema_components([*kinds, *others], ref_template=_REF)
    params, results = refs[0 : len(kinds) : 2], refs[1 : len(kinds) : 2]
    for kind in _answered(daemon.METHODS.values()):  # Fields with a default are always written, unless absent.
        fields = msgspec.structs.fields(kind)
        definitions[kind.__name__]["required"] = [f.encode_name for f in fields if f.default is not msgspec.UNSET]
    for kind in said:
        definitions[kind.__name__]["properties"] |= _SESSION_AND_SEQ
        definitions[kind.__name__]["required"] = ["sessionId", *definitions[kind.__name__]["required"]]
    error, _, log_event, changed = refs[-4:]
    told = [_notification("session/update", {"anyOf": refs[len(kinds) : -4]}), _notification("logs/event", log_event)]
    told.append(_notification("sessions/changed", changed))
    told += [_notification(method, {"type": "object"}) for method in (TELLS_STOPPING, TELLS_RESUMED)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "zot daemon, protocol version 1",
        "description": "Each line in either direction is one of these objects: see docs/reference/daemon.md. "
        "A connection whose `initialize` has `protocol_version` spells all keys in snake_case instead.",
        "anyOf": [{"$ref": _REF.format(name=name)} for name in ("FromClient", "FromDaemon")],
        "$defs": {
            "FromClient": {
                "description": "What a client may send. The daemon does not answer a message without an id.",
                "anyOf": [_call(method, kind) for method, kind in zip(methods, params, strict=True)],
            },
            "FromDaemon": {
                "description": "What the daemon sends. The method that was called determines the result.",
                "anyOf": [_answer("result", {"type": "object"}), _answer("error", error), *told],
            },
            **{f"result of {method.name}": ref for method, ref in zip(methods, results, strict=True)},
            **definitions,
        },
    }


def render_daemon() -> str:
    """Return the text of the file for the daemon."""
    return _rendered(daemon_schema())


def _answered(methods: Iterable[daemon.Method]) -> list[type[spelling.Spelled]]:
    """Return the structs that answers consist of, and no parameters do."""
    params = {method.params for method in methods}
    modules = (daemon, daemon_types)
    found = [kind for module in modules for kind in vars(module).values()]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, spelling.Spelled)]
    given = {daemon.ClientName, daemon_types.Attachment, daemon_types.Overrides, spelling.Spelled, *params}
    return [kind for kind in kinds if kind not in given]


_RPC_ID = {"type": ["string", "number", "null"]}
_SESSION_AND_SEQ = {
    "sessionId": {"type": "string"},
    "seq": {"type": "integer", "description": "Its number in the journal; missing if it is not recorded."},
}


def _call(method: daemon.Method, params: dict[str, Any]) -> dict[str, Any]:
    frame = _notification(method.name, params)
    return frame | {"description": method.summary, "properties": frame["properties"] | {"id": _RPC_ID}}


def _notification(method: str, params: dict[str, Any]) -> dict[str, Any]:
    properties = {"jsonrpc": {"const": "2.0"}, "method": {"const": method}, "params": params}
    return {"type": "object", "properties": properties, "required": ["jsonrpc", "method"]}


def _answer(key: str, value: dict[str, Any]) -> dict[str, Any]:
    properties = {"jsonrpc": {"const": "2.0"}, key: value, "id": _RPC_ID}
    return {"type": "object", "properties": properties, "required": [*properties]}


def _with_plain_id(kind: type[msgspec.Struct], id_type: Any) -> type[msgspec.Struct]:
    """Return the same frame with an id that says what it may be: ours keeps it as raw bytes, which have no schema."""
    fields: list[tuple[str, Any, Any]] = [
        (field.encode_name, id_type, msgspec.UNSET)
        if field.name == "id"
        else (field.encode_name, field.type, field.default)
        for field in msgspec.structs.fields(kind)
    ]
    fields.sort(key=lambda field: field[2] is not msgspec.NODEFAULT)
    config = kind.__struct_config__
    frame = msgspec.defstruct(kind.__name__, fields, tag=config.tag, tag_field=config.tag_field)
    frame.__doc__ = kind.__doc__
    return frame


def _data_of(command: type[Command], data: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        "if": {"properties": {"command": {"const": command.__struct_config__.tag}}},
        "then": {"properties": {"data": {"$ref": _REF.format(name=data.__name__)}}},
    }


def _one_of(description: str, kinds: list[Any]) -> dict[str, Any]:
    refs = {kind.__struct_config__.tag: _REF.format(name=kind.__name__) for kind in kinds}
    return {
        "description": description,
        "anyOf": [{"$ref": ref} for ref in refs.values()],
        "discriminator": {"propertyName": "type", "mapping": refs},
    }


def _rendered(schema: dict[str, Any]) -> str:
    return json.dumps(_with_clean_descriptions(schema), indent=2) + "\n"


def _with_clean_descriptions(value: Any) -> Any:
    """Return a schema without the indentation of docstrings, which Python keeps before 3.13 and strips from then on."""
    if isinstance(value, list):
        return [_with_clean_descriptions(one) for one in value]
    if isinstance(value, dict):
        return {
            key: inspect.cleandoc(one)
            if key == "description" and isinstance(one, str)
            else _with_clean_descriptions(one)
            for key, one in value.items()
        }
    return value


if __name__ == "__main__":
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(render())
    HOST_PATH.write_text(render_host())
    EXTENSION_PATH.write_text(render_extension())
    DAEMON_PATH.write_text(render_daemon())
