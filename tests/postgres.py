"""A PostgreSQL server that all tests of a run share, and a database of its own for each test."""

from __future__ import annotations

import fcntl
import json
import os
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

_SCRIPT = SimpleNamespace(**runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "postgres.py")))
#: A server of one's own, to be stopped and restarted.
Server: Any = _SCRIPT.Server
#: PgBouncer in front of a server.
Pooler: Any = _SCRIPT.Pooler


def _note(config: pytest.Config) -> Path:
    """Return the file with the server's address, the same for every worker of a test run."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    base = factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "postgres"


@contextmanager
def _locked(note: Path) -> Iterator[dict[str, Any]]:
    with open(note, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known: dict[str, Any] = json.loads(file.read() or "{}")
        yield known
        file.seek(0)
        file.truncate()
        file.write(json.dumps(known))


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The file that says where the server is. The last user of the run stops the server."""
    note = _note(request.config)
    with _locked(note) as known:
        known["users"] = known.get("users", 0) + 1
        if "directory" not in known:
            known["directory"] = str(Server().directory)
    yield note
    with _locked(note) as known:
        known["users"] -= 1
        if not known["users"]:
            _SCRIPT.remove(known.pop("directory"))


@pytest.fixture
def database(postgres_server: Path) -> str:
    """The address of an empty database."""
    name = f"zot_{uuid4().hex[:12]}"
    with _locked(postgres_server) as known:
        _SCRIPT.execute(known["directory"], f"CREATE DATABASE {name}")
    return str(_SCRIPT.address_in(known["directory"], name))
