"""Start of an Agent Client Protocol v1 connection: `initialize`. Does no I/O.

Separate from `acp`, so that it is answered before the rest of the protocol is imported.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from zot.encoding import UNREADABLE, explain
from zot.version import __version__
from zot.wire.jsonrpc import INVALID_PARAMS, RpcError, RpcRequest, encode_error, encode_result

PROTOCOL_VERSION: Final = 1

#: Ids of the authentication methods.
BY_ENVIRONMENT: Final = "environment"
BY_TERMINAL: Final = "terminal"


class AuthCapabilities(msgspec.Struct, frozen=True):
    """Authentication that the client can carry out."""

    terminal: bool | None = False


class SessionCapabilities(msgspec.Struct, frozen=True):
    """Optional updates that the client shows; an object stands for yes."""

    compaction: dict[str, Any] | None = None
    notices: dict[str, Any] | None = None


class FileCapabilities(msgspec.Struct, frozen=True, rename="camel"):
    """Access to the client's files, unsaved changes included."""

    read_text_file: bool | None = False
    write_text_file: bool | None = False


class ElicitationCapabilities(msgspec.Struct, frozen=True):
    """Questions that the client can show; an object stands for yes."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class ClientCapabilities(msgspec.Struct, frozen=True):
    """What the client supports, as far as zot uses it."""

    session: SessionCapabilities | None = None
    auth: AuthCapabilities | None = None
    fs: FileCapabilities | None = None
    elicitation: ElicitationCapabilities | None = None

    @property
    def reads_files(self) -> bool:
        """True if the client returns the text of files, with unsaved changes."""
        return self.fs is not None and bool(self.fs.read_text_file)

    @property
    def writes_files(self) -> bool:
        """True if the client changes files, too."""
        return self.fs is not None and bool(self.fs.write_text_file)

    def shows_question(self, *, url: bool) -> bool:
        """True if the client can ask the user for values, or with ``url`` to open an address."""
        shown = self.elicitation
        return shown is not None and (shown.url if url else shown.form) is not None

    @property
    def shows_compaction(self) -> bool:
        """True if the client shows compactions."""
        return self.session is not None and self.session.compaction is not None

    @property
    def shows_notices(self) -> bool:
        """True if the client shows notices."""
        return self.session is not None and self.session.notices is not None


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    protocol_version: int | str  # Before version 1 it was a text.


class _Capabilities(msgspec.Struct, frozen=True, rename="camel"):
    client_capabilities: ClientCapabilities | None = None


_versions: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)
_capabilities: msgspec.json.Decoder[_Capabilities] = msgspec.json.Decoder(_Capabilities)


class AcpGreeting:
    """Handshake state of one connection: whether `initialize` was answered, and the client's capabilities."""

    def __init__(self) -> None:
        self.initialized = False
        self.client = ClientCapabilities()

    def answer(self, request: RpcRequest) -> bytes:
        """Return the response to `initialize`, "" for a notification. The version is always 1: the only one spoken.

        A client that cannot speak version 1 disconnects, as the protocol demands. Capabilities that cannot be decoded,
        such as those of a later version, count as absent.
        """
        try:
            _versions.decode(request.params)
        except UNREADABLE as problem:
            wrong = RpcError(INVALID_PARAMS, f"initialize: {explain(problem)}")
            return b"" if request.id is None else encode_error(request.id, wrong)
        try:
            self.client = _capabilities.decode(request.params).client_capabilities or ClientCapabilities()
        except UNREADABLE:
            self.client = ClientCapabilities()
        self.initialized = True
        return b"" if request.id is None else encode_result(request.id, self._result())

    def _result(self) -> dict[str, Any]:
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "zot", "title": "zot", "version": __version__},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {"list": {}, "delete": {}, "resume": {}, "close": {}, "fork": {}},
                "auth": {"logout": {}},
            },
            "authMethods": self._auth_methods(),
        }

    def _auth_methods(self) -> list[dict[str, Any]]:
        methods: list[dict[str, Any]] = [
            {
                "id": BY_ENVIRONMENT,
                "name": "Key in the environment",
                "description": "Set the provider's variable, such as ANTHROPIC_API_KEY, where the editor starts zot.",
            }
        ]
        if self.client.auth is not None and self.client.auth.terminal:
            methods.append(
                {
                    "type": "terminal",
                    "id": BY_TERMINAL,
                    "name": "Store a key",
                    "description": "Type the provider's key in a terminal; zot stores it for this user.",
                    "args": ["--login"],
                }
            )
        return methods
