r"""Files as prompts name them: `@name`, or `@"my name"`, in which `\"` is a quote and `\\` a backslash."""

from __future__ import annotations

import re

from zot.ui.readable import escaped

_INSIDE = r'(?:[^"\\\n]|\\.)*'
_MENTION = re.compile(rf'(?:^|(?<=\s))@(?:"({_INSIDE})"|(\S+))')
#: What stands at the end of a line, and may become one.
BEGUN = rf'@"{_INSIDE}\\?|@\S*'
_ESCAPED = re.compile(r'\\(["\\])')
_NEEDS_QUOTES = re.compile(r'\s|^"')


def can_be_named(path: str) -> bool:
    """True if the editor takes a path as it is: no control characters, nothing that turns the writing around."""
    return "\n" not in path and "\t" not in path and escaped(path) == path


def mention(path: str) -> str:
    """Return how a prompt names a file. A directory is not the end of a path: neither are its quotes closed."""
    if not _NEEDS_QUOTES.search(path):
        return f"@{path}"
    inside = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'@"{inside}' if path.endswith("/") else f'@"{inside}"'


def meant(word: str) -> str:
    """Return the path, or its beginning, that a word means, which may not be at its end yet."""
    return _unescaped(word[2:]) if word.startswith('@"') else word[1:]


def mentioned(text: str) -> list[str]:
    """Return the paths that a prompt names."""
    return [_unescaped(quoted) if quoted else bare for quoted, bare in _MENTION.findall(text) if quoted or bare]


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(r"\1", text)
