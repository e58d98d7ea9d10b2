from __future__ import annotations

import pytest

from zot.providers.mask import Mask, userinfo


def test_a_secret_is_found_as_it_is_and_percent_encoded() -> None:
    mask = Mask(["sk-a/b+c"])
    assert mask("x sk-a/b+c y sk-a%2Fb%2Bc z sk-a/b%2Bc") == "x [key] y [key] z [key]"


def test_the_longest_is_replaced_first() -> None:
    mask = Mask(["sk-1"])
    mask.add(["sk-123456", "sk-123"])
    assert mask("sk-123456 sk-123 sk-1") == "[key] [key] [key]"


@pytest.mark.parametrize("secret", ["", "a", "abc"])
def test_what_is_too_short_to_be_a_secret_is_left_alone(secret: str) -> None:
    assert Mask([secret])("abc a") == "abc a"


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("", []),
        ("http://proxy:3128", []),
        ("http://me:pass%40word@proxy:3128", ["me:pass%40word", "pass%40word", "pass@word", "bWU6cGFzc0B3b3Jk"]),
        ("me:p@ss@proxy", ["me:p@ss", "p@ss", "p@ss", "bWU6cEBzcw=="]),
        ("https://token@host/v1", ["token", "token", "token", "dG9rZW46"]),
    ],
)
def test_the_secrets_of_an_address_are_known_as_a_header_has_them(url: str, secrets: list[str]) -> None:
    assert list(userinfo(url)) == secrets
