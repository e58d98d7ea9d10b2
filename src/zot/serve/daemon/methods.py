"""Method table of the daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from zot.serve.daemon.catalog import CatalogMethods
from zot.serve.daemon.connection import Handler
from zot.serve.daemon.server_methods import ServerMethods
from zot.serve.daemon.session_methods import SessionMethods, SideQuestions
from zot.serve.daemon.settings_methods import ExtensionMethods, SettingsMethods

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import Daemon


def make_handlers(daemon: Daemon) -> tuple[ServerMethods, Mapping[str, Handler]]:
    """Return the server methods, which must learn of disconnects, and the handlers of all methods."""
    server, side_questions = ServerMethods(daemon), SideQuestions(daemon.pool, daemon.parts.sessions.opening_aside)
    daemon.when_stopping(side_questions.stop)
    return server, {
        **SessionMethods(daemon.pool, daemon.catalog, side_questions).table,
        **side_questions.table,
        **SettingsMethods(daemon.pool, daemon.parts.sessions).table,
        **ExtensionMethods(daemon.pool).table,
        **CatalogMethods(daemon.pool, daemon.catalog, daemon.is_recovered).table,
        **server.table,
    }
