"""No request has more images than the service accepts; zot drops them in large steps."""

from __future__ import annotations

import pytest

from zot.config.vendors import VENDORS, ImageLimits
from zot.messages import ImageBlock, Message, ResultBlock, TextBlock
from zot.providers.base import ImageLimiter, fits

TEN = ImageLimits(max_bytes=100, max_count=10, max_total_bytes=500)
GONE = TextBlock("[an image was here; it is no longer shown, because there are too many newer ones]")


def image(size: int = 1) -> ImageBlock:
    return ImageBlock("image/png", b"x" * size)


def talk(count: int, size: int = 1) -> list[Message]:
    return [Message("user", (TextBlock(f"{number}"), image(size)), "t") for number in range(count)]


def shown(messages: list[Message], limits: ImageLimits = TEN) -> list[bool]:
    """Tell for each message if it still has its image."""
    sent = ImageLimiter().of(messages, limits)
    return [any(isinstance(block, ImageBlock) for block in message.content) for message in sent]


@pytest.mark.parametrize(("count", "gone"), [(0, 0), (10, 0), (11, 5), (15, 5), (16, 10), (20, 10), (100, 90)])
def test_the_oldest_of_too_many_images_are_dropped_in_steps(count: int, gone: int) -> None:
    assert shown(talk(count)) == [False] * gone + [True] * (count - gone)


@pytest.mark.parametrize(("count", "gone"), [(5, 0), (6, 3), (7, 3), (8, 5), (9, 5)])
def test_the_oldest_images_are_dropped_when_their_total_is_too_large(count: int, gone: int) -> None:
    assert shown(talk(count, 100)) == [False] * gone + [True] * (count - gone)


def test_a_growing_conversation_keeps_its_images_between_two_steps() -> None:
    images, messages = ImageLimiter(), talk(11)
    before = images.of(messages, TEN)
    messages = [*messages, *talk(4)]
    after = images.of(messages, TEN)
    assert all(ours is theirs for ours, theirs in zip(before, after, strict=False))
    assert after[5:] == messages[5:]
    assert images.of([*messages, *talk(1)], TEN)[5] != messages[5]


def test_the_choice_is_the_same_after_a_restart_and_after_a_change() -> None:
    images, grown = ImageLimiter(), talk(0)
    for message in talk(40):
        grown.append(message)
        assert images.of(grown, TEN) == ImageLimiter().of(grown, TEN)
    other = talk(3)
    assert images.of(other, TEN) is other


def test_images_of_results_count_and_only_those_that_would_be_sent() -> None:
    odd = ImageBlock("image/tiff", b"x")
    result = Message("tool", (ResultBlock("c", False, (TextBlock("a"), image(), odd, image())),), "t")
    [first, *rest] = ImageLimiter().of([result, *talk(9)], TEN)
    assert first.content == (ResultBlock("c", False, (TextBlock("a"), GONE, odd, GONE)),)
    assert shown([result, *talk(8)]) == [False, *[True] * 8]
    assert sum(any(isinstance(block, ImageBlock) for block in message.content) for message in rest) == 6


@pytest.mark.parametrize("vendor", VENDORS)
def test_the_newest_image_is_shown_wherever_it_fits(vendor: str) -> None:
    limits = VENDORS[vendor].chat.images
    largest = image(limits.max_bytes)
    messages = [Message("user", (largest,), "t")] * (limits.max_total_bytes // max(limits.max_bytes, 1) + 2)
    assert shown(messages, limits)[-1] or not fits(largest, limits)
