"""URLs cut into origin and path."""

from __future__ import annotations

import pytest

from zot.config.base_url import Origin, Target, split_url
from zot.errors import ConnectionFailed


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://api.example.com", Target(Origin("https", "api.example.com", 443), "/")),
        ("HTTP://API.Example.com/V1/X", Target(Origin("http", "api.example.com", 80), "/V1/X")),
        ("http://localhost:11434/api?a=1&b=%20#top", Target(Origin("http", "localhost", 11434), "/api?a=1&b=%20")),
        ("https://h?q=a/b", Target(Origin("https", "h", 443), "/?q=a/b")),
        ("https://h/p?at=user@host:1", Target(Origin("https", "h", 443), "/p?at=user@host:1")),
        ("http://h#frag/ment?x", Target(Origin("http", "h", 80), "/")),
        ("http://[::1]/x", Target(Origin("http", "::1", 80), "/x")),
        ("https://[2001:DB8::1]:8443/x//y", Target(Origin("https", "2001:db8::1", 8443), "/x//y")),
        ("http://h:/x", Target(Origin("http", "h", 80), "/x")),
    ],
)
def test_a_url_is_cut_into_origin_and_path(url: str, target: Target) -> None:
    assert split_url(url) == target


@pytest.mark.parametrize(
    ("origin", "authority", "label"),
    [
        (Origin("https", "h", 443), "h", "h:443"),
        (Origin("https", "h", 80), "h:80", "h:80"),
        (Origin("http", "::1", 80), "[::1]", "[::1]:80"),
        (Origin("http", "::1", 8080), "[::1]:8080", "[::1]:8080"),
    ],
)
def test_the_host_header_leaves_out_a_default_port_and_the_label_never_does(
    origin: Origin, authority: str, label: str
) -> None:
    assert (origin.authority, origin.label) == (authority, label)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "api.example.com/secret",
        "ftp://h/secret",
        "file:///secret",
        "http:///secret",
        "http://:80/secret",
        "http://h:99999/secret",
        "http://h:0/secret",
        "http://h:8x/secret",
        "http://::1/secret",
        "http://[::1/secret",
        "http://[::1]x/secret",
        "https://user:secret@h/",
        "https://secret@h/",
        "https://user:secret/x@h/",
        "http://.secret/",
        "http://secret..example/",
        f"http://secret{'a' * 60}/",
        "http://h/secret\r\nx: y",
        "http://h/a secret",
        "http://h/sécret",
    ],
)
def test_an_unusable_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(ConnectionFailed) as refused:
        split_url(url)
    assert "secret" not in str(refused.value)
