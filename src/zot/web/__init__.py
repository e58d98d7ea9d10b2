"""The daemon for browsers and other machines: WebSocket and HTTP. Needs the extra `web`."""

from zot.listen_address import Tls
from zot.web.app import app_for
from zot.web.embedded import open_daemon
from zot.web.limits import Limits
from zot.web.listen import Listening, listen, of_use, reserve
from zot.web.tokens import Tokens

__all__ = ["Limits", "Listening", "Tls", "Tokens", "app_for", "listen", "of_use", "open_daemon", "reserve"]
