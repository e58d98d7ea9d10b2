"""Images that a prompt names as @files."""

from __future__ import annotations

import asyncio
import os

from zot.errors import UserError
from zot.messages import ImageBlock
from zot.ui.conversation import Conversation
from zot.ui.terminal.mention import mentioned

_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
_MAX_BYTES = 20 * 1024 * 1024


async def named_images(text: str, conversation: Conversation) -> list[ImageBlock]:
    """Return the images that ``text`` names, from the directory of the conversation. Raise UserError as `images_in`."""
    return await asyncio.to_thread(images_in, text, (await conversation.state()).cwd)


def images_in(text: str, cwd: str) -> list[ImageBlock]:
    """Return the images that ``text`` names, if they are there. Raise UserError for one that cannot be sent."""
    found = []
    for name in mentioned(text):
        mime_type = _TYPES.get(os.path.splitext(name)[1].lower())
        path = os.path.join(cwd, os.path.expanduser(name))
        if mime_type is None or not os.path.isfile(path):
            continue
        try:
            if os.path.getsize(path) > _MAX_BYTES:
                raise UserError(f"{name} has more than {_MAX_BYTES >> 20} MiB")
            with open(path, "rb") as file:
                found.append(ImageBlock(mime_type, file.read()))
        except OSError as problem:
            raise UserError(f"{name}: {problem.strerror}") from None
    return found
