"""The daemon for browsers and other machines: WebSocket and HTTP. Needs the extra `web`."""

from zot.config.listen_address import Tls
from zot.serve.web.app import app_for
from zot.serve.web.embedded import open_daemon
from zot.serve.web.limits import Limits
from zot.serve.web.listen import Listening, listen, of_use, reserve
from zot.serve.web.tokens import Tokens

__all__ = ["Limits", "Listening", "Tls", "Tokens", "app_for", "listen", "of_use", "open_daemon", "reserve"]
