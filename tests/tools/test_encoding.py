from __future__ import annotations

import pytest

from zot.tools.text_encoding import PROBE_BYTES, detect

GERMAN = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n"
RUSSIAN = "Съешь же ещё этих мягких французских булок.\n"
JAPANESE = "<p>東京は夜の七時</p> <br> 2026\n"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "UTF-8"),
        (b"ascii\n", "UTF-8"),
        (GERMAN.encode(), "UTF-8"),
        (JAPANESE.encode(), "UTF-8"),
        (b"\x1b[31mred\x1b[0m\n" * 100, "UTF-8"),
        (GERMAN.encode("utf-8-sig"), "UTF-8 with BOM"),
        (("\ufeff" + GERMAN).encode("utf-16-le"), "UTF-16 LE with BOM"),
        (("\ufeff" + JAPANESE).encode("utf-16-be"), "UTF-16 BE with BOM"),
        (("\ufeff" + GERMAN).encode("utf-32-le"), "UTF-32 LE with BOM"),
        (("\ufeff" + GERMAN).encode("utf-32-be"), "UTF-32 BE with BOM"),
        (GERMAN.encode("utf-16-le"), "UTF-16 LE"),
        (GERMAN.encode("utf-16-be"), "UTF-16 BE"),
        (JAPANESE.encode("utf-16-le"), "UTF-16 LE"),
        (JAPANESE.encode("utf-16-be"), "UTF-16 BE"),
        (GERMAN.encode("latin-1"), "Latin-1"),
        ("„Zwölf“ – 5 €\n".encode("cp1252"), "Windows-1252"),
        (b"caf\xe9 \x81\n", "Latin-1"),
        (RUSSIAN.encode() + b"\xff", "UTF-8 with invalid bytes"),
        (bytes(range(256)), None),
        (b"\x01\x02\x03\xff" * 50, None),
        ("no text \0 has this\n".encode("utf-16-le"), None),
        (b"\0\xd8" * 20, None),
    ],
)
def test_an_encoding_is_known_by_its_bytes(data: bytes, name: str | None) -> None:
    found = detect(data)
    assert (found and found.name) == name


@pytest.mark.parametrize("text", [GERMAN, JAPANESE, "😀 is two units\n"])
@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_prefix_cut_anywhere_is_not_another_encoding(text: str, codec: str) -> None:
    unit = 1 if codec == "utf-8" else 2
    data = (text * 200).encode(codec)[:PROBE_BYTES]
    whole = detect(data)
    assert whole is not None
    for end in range(len(data) - 8 * unit, len(data), unit):
        assert detect(data[:end], is_whole=False) == whole


@pytest.mark.parametrize("codec", ["utf-8", "utf-16-le", "utf-16-be", "latin-1"])
def test_text_round_trips(codec: str) -> None:
    encoding = detect(GERMAN.encode(codec))
    assert encoding is not None
    assert encoding.decode(GERMAN.encode(codec)) == GERMAN
    assert encoding.encode(GERMAN) == GERMAN.encode(codec)
