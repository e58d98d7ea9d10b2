"""Daemon for browsers and other machines: WebSocket and HTTP. Needs the extra `web`."""

from zot.config.file import Tls
from zot.serve.web.asgi import app_for, open_daemon
from zot.serve.web.gate import Limits, Tokens
from zot.serve.web.listen import Listening, listen, matching, reserve

__all__ = ["Limits", "Listening", "Tls", "Tokens", "app_for", "listen", "matching", "open_daemon", "reserve"]
