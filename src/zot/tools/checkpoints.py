"""Files put back to what they were, unless somebody else has changed them since."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from zot.errors import ToolFailed
from zot.store import UNKEPT
from zot.tools.checkpoint import NOTHING, Content, content_at
from zot.tools.files import Place
from zot.tools.paths_part import Paths
from zot.tools.read_state import Seen, version_of


class Restorer:
    """Restores the files that ``paths`` leads to; what the model has ``seen`` of them is what is restored."""

    def __init__(self, paths: Paths, seen: Seen | None = None) -> None:
        self._paths = paths
        self._seen = Seen() if seen is None else seen

    def problem(self, root: str, path: str, *, found: Sequence[str | None], then: str | None) -> str | None:
        """Return why a file, which must be one of ``found``, cannot become ``then``; None if it can.

        One that is ``then`` already can: there is nothing to overwrite.
        """
        try:
            digest = self._look(os.path.join(root, path)).digest
        except ToolFailed as problem:
            return str(problem)
        if UNKEPT in (digest, *found, then):
            return "its content was not kept"
        return None if digest in (*found, then) else "somebody else changed it"

    def restore(
        self, root: str, path: str, data: bytes | None, *, found: Sequence[str | None], then: str | None, mode: int
    ) -> tuple[str | None, int] | None:
        """Make ``data``, whose digest is ``then``, the content of a file that is one of ``found``; None removes it.

        Return the digest and the permissions of what was there; None if it was so already. Raise ToolFailed, and then
        the file is as it was.
        """
        where = os.path.join(root, path)
        there = self._look(where)
        if there.digest == then:
            return None
        # Only a file that is to be made may need directories.
        with self._paths.find(where, "/", make_parents=there.digest is None) as place:
            there = content_at(place)
            if there.digest not in found:
                raise ToolFailed("somebody else changed it")
            self._put(place, data, there, mode)
        return there.digest, mode if there.about is None else stat.S_IMODE(there.about.st_mode)

    def _look(self, path: str) -> Content:
        """Return what is at ``path``. Raise ToolFailed if it is no file, or somewhere else than it was."""
        if os.path.realpath(path) != path:
            raise ToolFailed("a link leads elsewhere now")
        try:
            with self._paths.find(path, "/") as place:
                found = content_at(place)
                if found.digest is not None:
                    place.check_writable()
                return found
        except ToolFailed as problem:
            if isinstance(problem.__cause__, FileNotFoundError):
                return NOTHING
            raise

    def _put(self, place: Place, data: bytes | None, found: Content, mode: int) -> None:
        if data is None:
            assert found.about is not None
            place.remove(expected=found.about)
            self._seen.forget(place.keys)
        else:
            replaced = place.replace(data, expected=found.about, mode=mode)
            self._seen.note(place.keys, version_of(data, replaced.about))
