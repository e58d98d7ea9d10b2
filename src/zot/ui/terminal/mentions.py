"""@file mentions in prompts, images included."""

from __future__ import annotations

import asyncio
import os
import re

from zot.errors import UserError
from zot.messages import ImageBlock
from zot.ui.conversation import Conversation

_INSIDE = r'(?:[^"\\\n]|\\.)*'
_MENTION = re.compile(rf'(?:^|(?<=\s))@(?:"({_INSIDE})"|(\S+))')
#: An unfinished mention at the end of a line.
UNFINISHED = rf'@"{_INSIDE}\\?|@\S*'
_ESCAPED = re.compile(r'\\(["\\])')
_NEEDS_QUOTES = re.compile(r'\s|^"')

_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}
_MAX_BYTES = 20 * 1024 * 1024


def mention(path: str) -> str:
    """Return the mention of a path. A directory's quotes stay open, for the rest of the path."""
    if not _NEEDS_QUOTES.search(path):
        return f"@{path}"
    inside = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'@"{inside}' if path.endswith("/") else f'@"{inside}"'


def mentioned_path(word: str) -> str:
    """Return the path that a possibly unfinished mention names."""
    return _unescaped(word[2:]) if word.startswith('@"') else word[1:]


def mentioned(text: str) -> list[str]:
    """Return the paths that a prompt mentions."""
    return [_unescaped(quoted) if quoted else bare for quoted, bare in _MENTION.findall(text) if quoted or bare]


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)


async def named_images(text: str, conversation: Conversation) -> list[ImageBlock]:
    """Return the images that ``text`` mentions, from the conversation's directory. Raise UserError as `images_in`."""
    return await asyncio.to_thread(images_in, text, (await conversation.state()).cwd)


def images_in(text: str, cwd: str) -> list[ImageBlock]:
    """Return the existing images that ``text`` mentions. Raise UserError for one that cannot be sent."""
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
