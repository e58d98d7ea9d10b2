"""Who may come in: the tokens in a file that only its owner can read."""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Mapping

from zot.config.tokens import VOID, make, read
from zot.errors import ConfigError

log = logging.getLogger("zot")


class Tokens:
    """The tokens of one file: one on each line, alone or as `name:token`. What the file says now is what counts."""

    def __init__(self, path: str) -> None:
        """Read the file; one that does not exist is made, with one token. Raise ConfigError."""
        self.path = path
        self._seen: tuple[int, ...] = ()
        self._tokens: Mapping[str, bytes] = {}
        #: What is wrong with the file, as it was told.
        self._told = ""
        self._refresh()

    def bearer(self, token: str) -> str | None:
        """Return whose token it is; None if it is nobody's. Takes as long for one as for another."""
        try:
            self._refresh()
        except ConfigError as problem:  # What cannot be read admits nobody.
            self._tell(str(problem))
            return None
        self._tell("")
        given = token.encode("utf-8", "surrogatepass")
        found = None
        for name, known in self._tokens.items():
            if hmac.compare_digest(known, given):
                found = name
        return found

    def first(self) -> str:
        """Return the token of the first line, for whoever may read the file anyway."""
        return next(iter(self._tokens.values())).decode()

    def _tell(self, problem: str) -> None:
        """Log what is wrong with the file, once: those who are kept out are told nothing of it."""
        if problem == self._told:
            return
        self._told = problem
        if problem:
            log.warning("%s; %s", problem, VOID)
        else:
            log.warning("%s: it can be read again, and its tokens count", self.path)

    def _refresh(self) -> None:
        try:
            seen = _signature(os.stat(self.path))
        except FileNotFoundError:
            make(self.path)
            seen = _signature(os.stat(self.path))
        except OSError as problem:
            raise ConfigError(f"{self.path}: {problem.strerror}") from None
        if seen != self._seen:
            self._tokens = {}  # Until it has been read again, nobody is known.
            self._tokens = read(self.path)
            self._seen = seen


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode
