"""One MCP server as it is configured: expanded, checked, and ready to start."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from zot.config.base_url import split_url
from zot.config.flags import MCP_NAME_RULE, LiteralMcpServer, McpServer, is_mcp_name
from zot.errors import ConfigError, ConnectionImpossible
from zot.files import sha256
from zot.text import printable
from zot.tools.environment import ENVIRONMENT, PROXIES

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
#: The variables that every program gets, besides those that begin with `_PASSED_PREFIXES`.
_PASSED = ENVIRONMENT | PROXIES | {"TMPDIR"}
_PASSED_PREFIXES = ("LC_", "XDG_")


class McpSource(msgspec.Struct, frozen=True):
    """A server, ready to start. ``problem`` says why it cannot; ``origin`` is its file, "" for the user's settings."""

    name: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    #: The variables that its configuration sets, which a sandbox passes on.
    own_env: frozenset[str] = frozenset()
    cwd: str = ""
    tools: tuple[str, ...] = ("*",)
    timeout_s: float = 60.0
    enabled: bool = True
    origin: str = ""
    problem: str = ""
    #: The state of the files that trust in the project's file covers (`named_files`); None if nothing was checked.
    files: Mapping[str, str] | None = None
    #: The variables of the environment that its settings name.
    reads: frozenset[str] = frozenset()
    #: The address of a server over HTTP; then there is no program.
    url: str = ""
    headers: Mapping[str, str] = {}
    sandbox: bool = True
    #: zot's registration at the authorization server, and the scopes to ask for; "" if not configured.
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""

    @property
    def label(self) -> str:
        """The program or the address, without secrets."""
        return self.url.partition("?")[0] if self.url else self.argv[0] if self.argv else ""

    @property
    def runs(self) -> bool:
        """True if it can be started."""
        return self.enabled and not self.problem

    @property
    def digest(self) -> str:
        """A hash of the program and its surroundings: another one may have other tools."""
        if self.url:
            place: list[Any] = [self.name, self.url, sorted(self.headers.items())]
        else:
            place = [self.name, self.argv, {name: self.env[name] for name in sorted(self.own_env)}, self.cwd]
        return sha256(msgspec.json.encode(place)).hexdigest()[:32]


def make_source(name: str, server: McpServer, env: Mapping[str, str], cwd: str, origin: str) -> McpSource:
    """Return a server of a session in ``cwd``, its variables replaced by those of ``env``."""
    shown: dict[str, Any] = {"name": name, "enabled": server.enabled, "origin": origin}
    if not is_mcp_name(name):
        return McpSource(printable(name), origin=origin, problem=f"it has no usable name: {MCP_NAME_RULE}")
    shown |= {"tools": server.tools, "timeout_s": server.timeout_s, "sandbox": server.sandbox}
    variables = None if isinstance(server, LiteralMcpServer) else env
    if variables is not None:
        shown["reads"] = _variables_of(server)
    try:
        if server.url and not server.command:
            return _remote(shown, server, variables)
        if not server.command:
            raise ConfigError("it has no command and no url")
        if server.url:
            raise ConfigError("it has a command and a url; only one of them can be used")
        argv = tuple(_expanded(word, variables) for word in (server.command, *server.args))
        own = {key: _expanded(value, variables) for key, value in server.env.items()}
        place = os.path.join(cwd, os.path.expanduser(_expanded(server.cwd or "", variables)))
    except (ConfigError, ConnectionImpossible) as problem:
        return McpSource(**shown, problem=str(problem))
    if any("\0" in word for word in (*argv, *own, *own.values(), place)) or any("=" in key for key in own):
        return McpSource(**shown, problem="its command or environment has a NUL character or a name with `=`")
    clean = {**_clean(env), **own}
    return McpSource(**shown, cwd=os.path.abspath(place), argv=argv, env=clean, own_env=frozenset(own))


def _remote(shown: dict[str, Any], server: McpServer, env: Mapping[str, str] | None) -> McpSource:
    """Return a server over HTTP. Raise ConfigError."""
    url = _expanded(server.url, env)
    split_url(url)
    headers = {key.lower(): _expanded(value, env) for key, value in server.headers.items()}
    registered: dict[str, Any] = {
        "client_id": _expanded(server.client_id, env),
        "client_secret": _expanded(server.client_secret, env),
    }
    return McpSource(**shown, **registered, scope=server.scope, url=url, headers=headers)


def _variables_of(server: McpServer) -> frozenset[str]:
    texts = (server.command, *server.args, *server.env.values(), server.cwd or "", server.url, *server.headers.values(),
             server.client_id, server.client_secret)  # fmt: skip
    return frozenset(name for text in texts for name, _ in _VARIABLE.findall(text))


def _clean(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``env`` that name places and manners. Secrets are passed by configuration only."""
    return {key: value for key, value in env.items() if key in _PASSED or key.startswith(_PASSED_PREFIXES)}


def _expanded(text: str, env: Mapping[str, str] | None) -> str:
    """Return ``text`` with its variables replaced, as it is if ``env`` is None.

    Raise ConfigError if one is not set and has no default.
    """
    if env is None:
        return text

    def value(found: re.Match[str]) -> str:
        name, default = found[1], found[2]
        if (known := env.get(name, default)) is None:
            raise ConfigError(f"the variable {name} is not set")
        return known

    return _VARIABLE.sub(value, text) if "${" in text else text
