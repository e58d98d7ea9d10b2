from __future__ import annotations

import pytest

from zot.providers.mask import Mask, StreamMask, userinfo


def test_a_secret_is_found_verbatim_and_percent_encoded() -> None:
    mask = Mask(["sk-a/b+c"])
    assert mask("x sk-a/b+c y sk-a%2Fb%2Bc z sk-a/b%2Bc") == "x [key] y [key] z [key]"


def test_the_longest_is_replaced_first() -> None:
    mask = Mask(["sk-1"])
    mask.add(["sk-123456", "sk-123"])
    assert mask("sk-123456 sk-123 sk-1") == "[key] [key] [key]"


@pytest.mark.parametrize("secret", ["", "a", "abc"])
def test_a_text_too_short_to_be_a_secret_is_kept(secret: str) -> None:
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


SECRET = "sk-abab-123456"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"a {SECRET} b {SECRET}{SECRET}", "a [key] b [key][key]"),
        ("sk-abab-12345 sk- s", "sk-abab-12345 sk- s"),
        (f"sk-ab{SECRET}", "sk-ab[key]"),
        (f"\u00fc{SECRET}\U0001f600", "\u00fc[key]\U0001f600"),
        (f"cut off {SECRET[:-1]}", "cut off [key]"),
        ("cut off sk-abab", "cut off sk-abab"),
    ],
)
def test_a_secret_in_bytes_is_found_however_they_are_split(said: str, shown: str) -> None:
    data = said.encode()
    for size in range(1, len(data) + 1):
        mask = StreamMask(Mask([SECRET, "never"]))
        pieces = [mask.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert (b"".join(pieces) + mask.finish()).decode() == shown


def test_the_longest_secret_in_bytes_is_replaced_first() -> None:
    for size in range(1, 20):
        mask, data = StreamMask(Mask(["sk-1", "sk-123456", "3456"])), b"sk-123456 sk-1 3456"
        pieces = [mask.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert b"".join(pieces) + mask.finish() == b"[key] [key] [key]"


def test_bytes_without_a_secret_are_not_delayed() -> None:
    mask = StreamMask(Mask([SECRET]))
    assert [mask.feed(piece) for piece in (b"\xff\xfe", b"abc", b"a sk", b"y")] == [b"\xff\xfe", b"abc", b"a ", b"sky"]
