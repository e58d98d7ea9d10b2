"""Variables that programs in a sandbox and MCP servers get from the environment of zot."""

from __future__ import annotations

from typing import Final

#: Variables of locked commands, besides those that begin with LC_. They name places and manners, never secrets.
ENVIRONMENT: Final = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "NO_COLOR", "COLUMNS",
    "LINES", "VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT", "PYENV_VERSION", "RBENV_ROOT", "NVM_DIR", "NODE_PATH",
    "JAVA_HOME", "GOPATH", "GOROOT", "CARGO_HOME", "RUSTUP_HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE",
    "SSL_CERT_DIR", "GIT_OPTIONAL_LOCKS",
})  # fmt: skip
#: The way to the network, which may contain a password: only with the network itself.
PROXIES: Final = frozenset({
    "https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY",
})  # fmt: skip
