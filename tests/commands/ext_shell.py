"""`zot ext` in a shell."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from shell import Said, Shell
from zot import cli


class Ext(Shell):
    """A shell in which `zot ext` is used: in this process, because each of its own takes a tenth of a second."""

    @property
    def installed(self) -> Path:
        return self.home / "extensions"

    @property
    def local(self) -> Path:
        return self.cwd / ".zot" / "extensions"

    def ext(self, *argv: str, typed: bytes = b"") -> Said:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape") for _ in range(2))
        given = io.TextIOWrapper(io.BytesIO(typed))
        with (
            mock.patch.dict(os.environ, self.env, clear=True),
            mock.patch.multiple(sys, stdin=given, stdout=out, stderr=err),
            contextlib.chdir(self.cwd),
        ):
            code = cli.run(["ext", *argv])
        return Said(_written(out), _written(err), code)

    def listed(self) -> list[dict[str, Any]]:
        said = self.ext("list", "--json")
        assert (said.err, said.code) == ("", 0)
        return [json.loads(line) for line in said.out.split("\n")[:-1]]

    def standings(self) -> list[tuple[str, str, str]]:
        return [(one["name"], one["source"], one["standing"]) for one in self.listed()]


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
