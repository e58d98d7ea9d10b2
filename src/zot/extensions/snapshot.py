"""Snapshots of trusted project extensions: private copies of what was verified, from which they run.

A project's files can change at any time: by a pull, by another agent. What runs is a copy in zot's home, made from
the very bytes that were hashed. It has no data: that is in zot's home as well, so nothing that the project brings later
gets into an extension that was trusted before.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from typing import Final

from zot.config.trust import copy_hashed
from zot.errors import UserError
from zot.extensions.manifest import Manifest, changeable, data_directories, load
from zot.files import make_directory

#: Snapshots that were not started for so long are removed when another one of the same extension is made.
_KEPT_S: Final = 30 * 24 * 3600.0
_ORIGIN_DIGITS: Final = 16
_CONTENT_DIGITS: Final = 40


class Snapshot:
    """The copy of the extension in ``directory`` whose content has this ``fingerprint``, in zot's ``home``."""

    def __init__(self, home: str, directory: str, fingerprint: str) -> None:
        real = os.path.realpath(directory)
        self._directory = directory
        self._fingerprint = fingerprint
        self._origin = hashlib.sha256(os.fsencode(real)).hexdigest()[:_ORIGIN_DIGITS]
        self._place = os.path.join(os.path.abspath(home), "snapshots")
        content = fingerprint.rpartition(":")[2][:_CONTENT_DIGITS]
        #: The directory to run from.
        self.path = os.path.join(self._place, f"{self._origin}-{content}")
        #: The directory of its data directories, which outlives a change of its content.
        self.data = os.path.join(os.path.abspath(home), "extension-data", f"{os.path.basename(real)}-{self._origin}")

    def make(self, manifest: Manifest) -> None:
        """Copy the extension unless that was done before, and create its data directories.

        Raise UserError if its content is not the one that was trusted.
        """
        try:
            for name in data_directories(manifest):
                make_directory(os.path.join(self.data, name))
            if not os.path.isdir(self.path):
                self._copy(manifest)
                self._remove_old()
            os.utime(self.path)
        except OSError as problem:
            raise UserError(f"{problem.filename or self.path}: {problem.strerror}") from None

    def _copy(self, manifest: Manifest) -> None:
        copy = f"{self.path}.{os.urandom(4).hex()}"
        make_directory(copy)
        try:
            if copy_hashed(self._directory, changeable(manifest, self._directory), copy) != self._fingerprint:
                raise UserError(_changed(manifest))
            if load(copy) != manifest:
                raise UserError(_changed(manifest))
            names = data_directories(manifest)
            for name in names:
                if any(name.startswith(f"{other}/") for other in names):
                    continue  # It is in another one.
                link = os.path.join(copy, name)
                make_directory(os.path.dirname(link))
                os.symlink(os.path.join(self.data, name), link)
            with suppress(OSError):  # another process was faster, with the same content
                os.rename(copy, self.path)
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _remove_old(self) -> None:
        for entry in os.scandir(self._place):
            is_old = entry.stat(follow_symlinks=False).st_mtime < time.time() - _KEPT_S
            if entry.name.startswith(f"{self._origin}-") and is_old:
                shutil.rmtree(entry.path, ignore_errors=True)


def _changed(manifest: Manifest) -> str:
    return f"its files have changed since they were trusted; look at them, then: zot ext trust {manifest.name}"
