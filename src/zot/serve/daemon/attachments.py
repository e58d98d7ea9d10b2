"""Files that come with a prompt: images for the model to see, text for it to read."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from zot.errors import UserError
from zot.files import content
from zot.messages import ImageBlock
from zot.tools.images import MAX_IMAGE_BYTES, image_type
from zot.wire.daemon_types import Attachment

_MAX_BYTES = 10 << 20
_MAX_TEXT_BYTES = 256 << 10


async def read_attachments(
    attachments: Sequence[Attachment], *, is_local: bool
) -> tuple[tuple[str, ...], tuple[ImageBlock, ...]]:
    """Return what is added to the prompt's words, and the images. Raise UserError for what no model could use."""
    if not attachments:
        return (), ()
    return await asyncio.to_thread(_read_all, attachments, is_local)


def _read_all(attachments: Sequence[Attachment], is_local: bool) -> tuple[tuple[str, ...], tuple[ImageBlock, ...]]:
    words: list[str] = []
    images: list[ImageBlock] = []
    for attachment in attachments:
        data, name = _data(attachment, is_local), _name(attachment)
        kind = image_type(data[:64])
        if kind is not None:
            if len(data) > MAX_IMAGE_BYTES:
                raise UserError(f"{name}: an image may have {MAX_IMAGE_BYTES} bytes at most, and it has {len(data)}")
            images.append(ImageBlock(kind, data))
        else:
            words.append(_as_words(attachment, data, name))
    return tuple(words), tuple(images)


def _data(attachment: Attachment, is_local: bool) -> bytes:
    if attachment.data_b64 is not None:
        data = attachment.data_b64
    elif attachment.path is None:
        raise UserError("an attachment needs path or dataB64")
    elif not is_local:
        raise UserError("a path means nothing over the network; send the file as dataB64")
    elif not os.path.isabs(attachment.path):
        raise UserError(f"{attachment.path}: the path of an attachment must be absolute")
    else:
        try:
            if os.path.getsize(attachment.path) > _MAX_BYTES:
                raise UserError(f"{attachment.path}: an attachment may have {_MAX_BYTES} bytes at most")
            data = content(attachment.path)
        except OSError as problem:
            raise UserError(f"{attachment.path}: {problem.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise UserError(f"{_name(attachment)}: an attachment may have {_MAX_BYTES} bytes at most")
    return data


def _as_words(attachment: Attachment, data: bytes, name: str) -> str:
    """Return a file that is no image for the model: its text, or where it can be read."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = None
    if text is not None and len(data) <= _MAX_TEXT_BYTES and "\0" not in text:
        return f"[Document: {name}]\n{text}\n[End of {name}]"
    if attachment.path is not None and attachment.data_b64 is None:
        return f"[Document: {name}] {attachment.path}"
    raise UserError(f"{name}: neither an image nor text of at most {_MAX_TEXT_BYTES} bytes; send its path instead")


def _name(attachment: Attachment) -> str:
    return attachment.filename or os.path.basename(attachment.path or "") or "attachment"
