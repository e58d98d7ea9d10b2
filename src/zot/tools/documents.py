"""Files as the user's editor has them: unsaved text is what the tools see, and changes are made in the editor.

Lazily imported: only sessions of an editor have them.
"""

from __future__ import annotations

import asyncio
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import NamedTuple

from zot.errors import ToolFailed
from zot.files import sha256
from zot.tools.base import CallReporter
from zot.tools.file_access import FileLocation, Replaced, read_at

#: Larger files are not asked for.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_MAX_KNOWN = 10_000


class _Known(NamedTuple):
    """Digests of a file on disk and in the editor, when both were last compared."""

    disk: bytes
    editor: bytes


class OpenDocuments(ABC):
    """The documents of an editor. Files that it cannot read, and those that are no UTF-8 text, are left to the disk."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    @property
    @abstractmethod
    def can_write(self) -> bool:
        """True if the editor makes changes, too."""

    @abstractmethod
    async def read(self, path: str) -> str | None:
        """Return the text of a document, None if the editor cannot read it."""

    @abstractmethod
    async def write(self, path: str, text: str) -> None:
        """Replace the text of a document and save it. Raise ToolFailed."""

    async def locate(self, found: FileLocation, changing: CallReporter | None = None) -> FileLocation:
        """Return the place whose content counts: ``found``, or the document in the editor.

        ``changing`` is the reporter of a call that changes the file: the editor's place is then used only if it
        `can_write`.
        """
        if changing is not None and not self.can_write:
            return found
        on_disk = _text_on_disk(found)
        if on_disk is None:
            return found
        text = await self.read(found.path)
        if text is None:
            is_new = changing is not None and not found.exists()
            return DocumentLocation(found, None, self, changing) if is_new else found
        data = text.encode("utf-8", "replace")
        if len(data) > MAX_DOCUMENT_BYTES:
            return found
        now = _Known(sha256(on_disk).digest(), sha256(data).digest())
        if self._is_behind(found.path, now):
            return found
        self._remember(found.path, now)
        return DocumentLocation(found, data, self, changing)

    async def text_to_change(self, path: str, on_disk: bytes) -> str | None:
        """Return the text that a change of a file would replace in the editor; None if the content on disk counts."""
        text = await self.read(path) if self.can_write else None
        if text is None:
            return None
        now = _Known(sha256(on_disk).digest(), sha256(text.encode("utf-8", "replace")).digest())
        return None if self._is_behind(path, now) else text

    def _is_behind(self, path: str, now: _Known) -> bool:
        """True if a command has changed the file, and the editor has not loaded it yet."""
        before = self._known.get(path)
        return before is not None and before.disk != now.disk and before.editor == now.editor

    def _remember(self, path: str, now: _Known) -> None:
        self._known.pop(path, None)
        self._known[path] = now
        if len(self._known) > _MAX_KNOWN:
            del self._known[next(iter(self._known))]


class DocumentLocation(FileLocation):
    """A file whose content is ``data`` in an editor; None for one that does not exist. The caller closes ``found``."""

    def __init__(
        self, found: FileLocation, data: bytes | None, documents: OpenDocuments, changing: CallReporter | None
    ) -> None:
        super().__init__(found._directory, found._name, found._shown, found.path)
        self._data = data
        self._documents = documents
        self._reporter = changing or CallReporter()

    @contextmanager
    def open(self) -> Iterator[int]:
        if self._data is None:
            with super().open() as fd:
                yield fd
            return
        with TemporaryFile(buffering=0) as file:
            file.write(self._data)
            yield file.fileno()

    def exists(self) -> bool:
        return self._data is not None or super().exists()

    async def save(self, data: bytes, *, expected: os.stat_result | None = None) -> Replaced:
        """Replace the content in the editor, which saves it. Raise ToolFailed, also if the user has changed it."""
        shown, created = self._shown, self._data is None
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise ToolFailed(f"cannot write {shown}: the editor takes UTF-8 text only") from None
        if self._data is not None:
            now = await self._documents.read(self.path)
            if now is None or now.encode("utf-8", "replace") != self._data:
                raise ToolFailed(f"{shown} was changed in the editor at the same time; read it again")
        try:
            await self._documents.write(self.path, text)
        except asyncio.CancelledError:
            self._reporter.last_words(f"aborted while the editor was saving {shown}: it may have changed")
            raise
        except ToolFailed:
            if not created or super().exists():
                raise
            return self.replace(data)  # The editor does not make files there.
        return Replaced(created, (), self._status())

    def _status(self) -> os.stat_result:
        """Return the status of the saved file; of its directory if the editor has not saved it."""
        try:
            return os.stat(self.path)
        except OSError:
            return os.fstat(self._directory)


def _text_on_disk(found: FileLocation) -> bytes | None:
    """Return the content of a file, b"" if there is none; None if an editor cannot have it as text."""
    try:
        with found.open() as fd:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_DOCUMENT_BYTES:
                return None
            data = read_at(fd, MAX_DOCUMENT_BYTES, 0)
    except ToolFailed as problem:
        return b"" if isinstance(problem.__cause__, FileNotFoundError) else None
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    return None if b"\0" in data else data
