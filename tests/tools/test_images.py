from __future__ import annotations

import pytest

from zot.tools.images import Size, image_size, image_type, is_complete

from .pictures import KINDS, image, jpeg, png_chunk, segment, webp, webp_extended, webp_lossless, webp_lossy, whole

SIZED = {
    "PNG": ("image/png", image("image/png", 300, 70_000), Size(300, 70_000)),
    "GIF": ("image/gif", image("image/gif", 300, 65_000), Size(300, 65_000)),
    "JPEG": ("image/jpeg", jpeg(300, 65_000), Size(300, 65_000)),
    "JPEG with a camera's notes": ("image/jpeg", jpeg(7, 9, between=segment(0xE1, 60_000) * 3), Size(7, 9)),
    "JPEG with tables first": ("image/jpeg", jpeg(7, 9, between=segment(0xC4, 20)), Size(7, 9)),
    "JPEG with fill bytes": ("image/jpeg", jpeg(7, 9, between=b"\xff\xff"), Size(7, 9)),
    "JPEG with a restart": ("image/jpeg", jpeg(7, 9, between=b"\xff\xd0"), Size(7, 9)),
    "JPEG, progressive": ("image/jpeg", jpeg(7, 9, frame=0xC2), Size(7, 9)),
    "WebP, lossy": ("image/webp", webp_lossy(300, 16_000), Size(300, 16_000)),
    "WebP, lossless": ("image/webp", webp_lossless(300, 16_384), Size(300, 16_384)),
    "WebP, extended": ("image/webp", webp_extended(70_000, 300), Size(70_000, 300)),
}


@pytest.mark.parametrize(("mime_type", "data", "size"), SIZED.values(), ids=SIZED.keys())
def test_the_header_says_how_large_an_image_is(mime_type: str, data: bytes, size: Size) -> None:
    assert image_type(data) == mime_type
    assert image_size(data + bytes(100), mime_type) == size


@pytest.mark.parametrize(("mime_type", "data", "size"), SIZED.values(), ids=SIZED.keys())
def test_a_header_cut_anywhere_says_nothing(mime_type: str, data: bytes, size: Size) -> None:
    found = {image_size(data[:end], mime_type) for end in range(min(len(data), 40))}
    assert found <= {None, size}
    assert None in found


@pytest.mark.parametrize(
    ("mime_type", "data"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIDAT" + bytes(20)),
        ("image/jpeg", b"\xff\xd8\xff\xe0\0\x02no marker here"),
        ("image/webp", webp(b"ICCP", bytes(30))),
        *((kind, image(kind, 0, 0)) for kind in KINDS),
    ],
)
def test_a_damaged_header_says_nothing(mime_type: str, data: bytes) -> None:
    assert image_size(data, mime_type) is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_that_is_cut_off_anywhere_is_not_complete(kind: str) -> None:
    data = whole(kind, 64, 48)
    assert is_complete(data, kind)
    assert is_complete(data + b"what others append", kind)
    assert [end for end in range(12, len(data)) if is_complete(data[:end], kind)] == []


def test_a_gif_is_parsed_with_all_its_colour_tables() -> None:
    table = bytes(3 * 4)
    head = b"GIF89a" + bytes(4) + b"\x81\0\0" + table
    frame = b"," + bytes(8) + b"\x81" + table + b"\x02\x03;;;\0"
    assert is_complete(head + frame * 2 + b";", "image/gif")
    assert not is_complete(head + frame * 2, "image/gif")
    assert not is_complete(head + frame + b"?" + frame + b";", "image/gif")
    assert not is_complete(head + b";", "image/gif")


def test_a_png_with_a_wrong_byte_is_not_complete() -> None:
    data = whole("image/png", 64, 48)
    assert not is_complete(data.replace(b"x", b"y"), "image/png")


def test_a_png_with_a_wrong_checksum_of_its_metadata_is_complete() -> None:
    """Decoders skip this chunk: the sample image of a widely used MCP server has one."""
    data = whole("image/png", 3, 4)
    start = data.index(b"IDAT") - 4
    damaged = png_chunk(b"iCCP", b"colours").replace(b"colours", b"colors!")
    assert is_complete(data[:start] + damaged + data[start:], "image/png")
    assert not is_complete(data[:start] + damaged, "image/png")


def test_the_end_of_a_jpeg_s_thumbnail_is_not_its_own() -> None:
    small = b"\xff\xe1\0\x08\xff\xda\xff\xd9\0\0"
    data = jpeg(64, 48, between=small) + bytes(9) + b"\xff\xda\0\x02\x12"
    assert not is_complete(data, "image/jpeg")
    assert is_complete(data + b"\xff\xd9", "image/jpeg")


@pytest.mark.parametrize("data", [b"", b"GIF", b"RIFF\0\0\0\0WAVE", b"BM", b"\xff\xd8"])
def test_other_files_are_not_images(data: bytes) -> None:
    assert image_type(data) is None
