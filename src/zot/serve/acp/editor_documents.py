"""Files of a session as its editor has them, through `fs/read_text_file` and `fs/write_text_file`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from zot.errors import ToolFailed
from zot.tools.documents import OpenDocuments
from zot.wire import acp
from zot.wire.jsonrpc import RpcError

if TYPE_CHECKING:
    from zot.serve.acp.server import AcpServer

#: How long the editor may take to answer.
_READ_S: Final = 5.0
_WRITE_S: Final = 30.0


class EditorDocuments(OpenDocuments):
    """The documents of the editor for one session in ``cwd``, as the editor spells that directory."""

    def __init__(
        self, client: AcpServer, session_id: str, cwd: str, *, read_s: float = _READ_S, write_s: float = _WRITE_S
    ) -> None:
        super().__init__()
        self._read_s, self._write_s = read_s, write_s
        self._client = client
        self._session_id = session_id
        self._cwd = cwd
        self._real = os.path.join(os.path.realpath(cwd), "")

    @property
    def can_write(self) -> bool:
        return self._client.greeting.client.writes_files

    async def read(self, path: str) -> str | None:
        params = {"sessionId": self._session_id, "path": self._spelled(path)}
        try:
            return acp.text_in(await self._client.ask("fs/read_text_file", params, within_s=self._read_s))
        except (RpcError, TimeoutError):
            return None

    async def write(self, path: str, text: str) -> None:
        params = {"sessionId": self._session_id, "path": self._spelled(path), "content": text}
        try:
            await self._client.ask("fs/write_text_file", params, within_s=self._write_s)
        except RpcError as problem:
            raise ToolFailed(f"the editor did not save {path}: {problem.message}") from None
        except TimeoutError:
            raise ToolFailed(
                f"the editor has not saved {path} within {self._write_s:g} s; it may do so later"
            ) from None

    def _spelled(self, path: str) -> str:
        """Return a real path as the editor spells it, whose directory may be reached through a link."""
        return os.path.join(self._cwd, path[len(self._real) :]) if path.startswith(self._real) else path
