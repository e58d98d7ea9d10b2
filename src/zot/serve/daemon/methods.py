"""What is done for each method, put together: loaded when the first one is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zot.serve.daemon.asides import Asides
from zot.serve.daemon.connection import Handler
from zot.serve.daemon.extension_methods import ExtensionMethods
from zot.serve.daemon.kept_methods import KeptMethods
from zot.serve.daemon.server_methods import ServerMethods
from zot.serve.daemon.session_methods import SessionMethods
from zot.serve.daemon.settings_methods import SettingsMethods

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon


def made_for(daemon: Daemon) -> tuple[ServerMethods, Mapping[str, Handler]]:
    """Return the handlers of all methods by their names; also those that hear of who has gone."""
    server, asides = ServerMethods(daemon), Asides(daemon.hub, daemon.parts.opening_aside)
    daemon.when_stopping(asides.stop)
    return server, {
        **SessionMethods(daemon.hub, daemon.shelf, asides).table,
        **asides.table,
        **SettingsMethods(daemon.hub, daemon.parts).table,
        **ExtensionMethods(daemon.hub).table,
        **KeptMethods(daemon.hub, daemon.shelf, daemon.is_mended).table,
        **server.table,
    }
