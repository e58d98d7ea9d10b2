"""zot: the agent runtime that other programs embed.

   async with zot.Runtime(provider="lab") as runtime:
       async for event in runtime.prompt("hello"):
           print(zot.encode(event).decode())

Names are imported on first use: `import zot` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` alone would cost a fifth of `zot --version`; type checkers know the name.
if TYPE_CHECKING:
    from typing import Any

    from zot import events as events
    from zot.client.client import Client as Client
    from zot.client.session import ClientSession as ClientSession
    from zot.client.session import ClientTurn as ClientTurn
    from zot.config.config import Config as Config
    from zot.encoding import encode as encode
    from zot.errors import AgentError as AgentError
    from zot.errors import ConfigError as ConfigError
    from zot.errors import ConnectionLost as ConnectionLost
    from zot.errors import EpochChanged as EpochChanged
    from zot.errors import PromptLost as PromptLost
    from zot.errors import ProviderError as ProviderError
    from zot.errors import RewindRefused as RewindRefused
    from zot.errors import RunCancelled as RunCancelled
    from zot.errors import RuntimeBusy as RuntimeBusy
    from zot.errors import RuntimeClosed as RuntimeClosed
    from zot.errors import UserError as UserError
    from zot.events import AgentEvent as AgentEvent
    from zot.events import decode as decode
    from zot.messages import ImageBlock as ImageBlock
    from zot.messages import Message as Message
    from zot.messages import TextBlock as TextBlock
    from zot.messages import show as show
    from zot.sdk.blocking import BlockingRuntime as BlockingRuntime
    from zot.sdk.blocking import run as run
    from zot.sdk.runtime import Answer as Answer
    from zot.sdk.runtime import Events as Events
    from zot.sdk.runtime import Runtime as Runtime
    from zot.session.rewind import RestoredFile as RestoredFile
    from zot.session.rewind import Rewound as Rewound
    from zot.version import __version__ as __version__
    from zot.wire.jsonrpc import RpcError as RpcError

_HOMES = {
    "zot.sdk.blocking": ("BlockingRuntime", "run"),
    "zot.client.client": ("Client",),
    "zot.client.session": ("ClientSession", "ClientTurn"),
    "zot.config.config": ("Config",),
    "zot.errors": (
        "AgentError",
        "ConfigError",
        "ConnectionLost",
        "EpochChanged",
        "PromptLost",
        "ProviderError",
        "RewindRefused",
        "RunCancelled",
        "RuntimeBusy",
        "RuntimeClosed",
        "UserError",
    ),
    "zot.encoding": ("encode",),
    "zot.events": ("AgentEvent", "decode"),
    "zot.messages": ("ImageBlock", "Message", "TextBlock", "show"),
    "zot.session.rewind": ("RestoredFile", "Rewound"),
    "zot.sdk.runtime": ("Answer", "Events", "Runtime"),
    "zot.version": ("__version__",),
    "zot.wire.jsonrpc": ("RpcError",),
}
#: Submodules available as attributes: `zot.events.Done`.
_MODULES = ("events",)
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605 -- derived from the table


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None and name not in _MODULES:
        raise AttributeError(f"module 'zot' has no attribute {name!r}")
    from importlib import import_module  # Imported lazily: `import zot` loads nothing.

    if home is None:
        return import_module(f"zot.{name}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *_MODULES})
