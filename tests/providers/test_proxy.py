"""Which proxy for which origin: the environment's rules."""

from __future__ import annotations

import pytest

from zot.config.base_url import Origin
from zot.errors import ConnectionFailed
from zot.providers.http import Proxy, find_proxy

HTTP = Origin("http", "api.example.com", 80)
HTTPS = Origin("https", "api.example.com", 443)
P, Q = Proxy("p", 3128), Proxy("q", 3128)
P_URL, Q_URL = "http://p:3128", "http://q:3128"


@pytest.mark.parametrize(
    ("origin", "env", "proxy"),
    [
        (HTTPS, {}, None),
        (HTTPS, {"HTTPS_PROXY": P_URL}, P),
        (HTTPS, {"https_proxy": P_URL, "HTTPS_PROXY": Q_URL}, P),
        (HTTPS, {"https_proxy": "", "HTTPS_PROXY": Q_URL}, Q),
        (HTTPS, {"HTTP_PROXY": P_URL, "http_proxy": P_URL}, None),
        (HTTPS, {"HTTPS_PROXY": P_URL, "ALL_PROXY": Q_URL}, P),
        (HTTPS, {"all_proxy": P_URL, "ALL_PROXY": Q_URL}, P),
        (HTTPS, {"HTTPS_PROXY": P_URL, "REQUEST_METHOD": "GET"}, P),
        (HTTP, {"HTTP_PROXY": P_URL}, P),
        (HTTP, {"HTTPS_PROXY": P_URL}, None),
        (HTTP, {"HTTP_PROXY": P_URL, "REQUEST_METHOD": "GET"}, None),
        (HTTP, {"http_proxy": P_URL, "REQUEST_METHOD": "GET"}, P),
        (HTTP, {"HTTP_PROXY": P_URL, "ALL_PROXY": Q_URL, "REQUEST_METHOD": "GET"}, Q),
        (HTTP, {"HTTP_PROXY": "p:3128"}, P),
        (HTTP, {"HTTP_PROXY": "p"}, Proxy("p", 80)),
        (HTTP, {"HTTP_PROXY": " http://P:3128/ "}, P),
        (HTTP, {"HTTP_PROXY": "http://[::1]:3128"}, Proxy("::1", 3128)),
        (HTTP, {"HTTP_PROXY": "http://user:p%40ss@p:3128"}, Proxy("p", 3128, "Basic dXNlcjpwQHNz")),
        (HTTP, {"HTTP_PROXY": "user@p:3128"}, Proxy("p", 3128, "Basic dXNlcjo=")),
    ],
)
def test_the_environment_names_the_proxy(origin: Origin, env: dict[str, str], proxy: Proxy | None) -> None:
    assert find_proxy(origin, env) == proxy


@pytest.mark.parametrize(
    ("host", "no_proxy", "exempt"),
    [
        ("api.example.com", "*", True),
        ("api.example.com", "api.example.com", True),
        ("api.example.com", "API.Example.COM", True),
        ("api.example.com.", "api.example.com", True),
        ("api.example.com", "example.com", True),
        ("api.example.com", ".example.com", True),
        ("api.example.com", "*.example.com", True),
        ("example.com", ".example.com", True),
        ("badexample.com", "example.com", False),
        ("example.com.evil.org", "example.com", False),
        ("api.example.com", "other.org, .example.com", True),
        ("api.example.com", "other.org .example.com", True),
        ("api.example.com", ".", False),
        ("api.example.com", ",, ,", False),
        ("api.example.com", "api.example.com:443", True),
        ("api.example.com", "api.example.com:8443", False),
        ("api.example.com", "10.0.0.0/8", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "10.1.2.4/8", True),
        ("10.1.2.3", "192.168.0.0/16", False),
        ("10.1.2.3", "10.1.2.3:443", True),
        ("10.1.2.3", "10.1.2.3:80", False),
        ("10.1.2.3", "2.3", False),
        ("10.1.2.3", "example.com", False),
        ("10.1.2.3", "10.0.0.0/99", False),
        ("::1", "::1", True),
        ("::1", "[::1]", True),
        ("::1", "[::1]:443", True),
        ("::1", "[::1]:80", False),
        ("fd00::5", "fd00::/8", True),
        ("fd00::5", "10.0.0.0/8", False),
        ("localhost", "", False),
        ("127.0.0.1", "localhost", False),
        ("localhost", "localhost", True),
    ],
)
def test_no_proxy_exempts_what_it_names_and_nothing_else(host: str, no_proxy: str, exempt: bool) -> None:
    origin = Origin("https", host, 443)
    assert find_proxy(origin, {"HTTPS_PROXY": P_URL, "NO_PROXY": no_proxy}) == (None if exempt else P)


def test_lower_case_no_proxy_wins() -> None:
    env = {"HTTPS_PROXY": P_URL, "no_proxy": "other.org", "NO_PROXY": "*"}
    assert find_proxy(HTTPS, env) == P


@pytest.mark.parametrize(
    "url", ["https://user:secret@p:3128", "socks5://user:secret@p", "http://u:secret@p:port", "http://u:sec/ret@"]
)
def test_a_proxy_we_cannot_use_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(ConnectionFailed) as refused:
        find_proxy(HTTPS, {"HTTPS_PROXY": url})
    assert "sec" not in str(refused.value)
