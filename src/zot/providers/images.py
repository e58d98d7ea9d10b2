"""Images on their way to a model: what an API does not take is said in words."""

from __future__ import annotations

from zot.messages import ImageBlock

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def fits(image: ImageBlock, *, types: frozenset[str] = IMAGE_TYPES, max_bytes: int) -> bool:
    """Whether an API that takes these types, up to this size, takes the image.

    One that it cannot take would make it refuse this and every later request.
    """
    return image.mime_type in types and 0 < len(image.data) <= max_bytes


def left_out(image: ImageBlock) -> str:
    """Return what the model is told instead."""
    return f"[an image was left out: {image.mime_type or 'unknown type'}, {len(image.data)} bytes]"
