"""The audit log: a flood of minor calls evicts no important entry, and `verify` notices a damaged log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemons import Running, running
from zot.serve.daemon import audit as audits
from zot.serve.daemon.audit import Audit, Identity, access_path, verify
from zot.serve.daemon.client_connection import ClientConnection
from zot.serve.daemon.logs import LogFile, log_files
from zot.wire.daemon import METHODS, Grant
from zot.wire.jsonrpc import RpcError

VIEWER = Identity("ws", token="viewer")


class Mute:
    """A wire of a client that gets no messages."""


def at_once(action: Any) -> None:
    action()


def lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for file in log_files(path) for line in Path(file).read_text().splitlines()]


async def test_a_flood_of_calls_that_only_read_is_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.log")
    audit = Audit(LogFile(path), soon=at_once)
    audit.call(VIEWER, "session/prompt", session="s")
    for _ in range(420_000):
        audit.read(VIEWER)
    audit.close()
    assert [one.get("method") for one in lines(path)] == [None, "session/prompt"]
    [counted] = lines(access_path(path))
    assert (counted["event"], counted["token"], counted["lines"]) == ("reads", "viewer", 420_000)


async def test_no_flood_of_cheap_changes_rotates_out_what_another_token_did(tmp_path: Path) -> None:
    """A token that may prompt can rename a session as often as it likes, and switch between sessions."""
    path = str(tmp_path / "audit.log")
    audit = Audit(LogFile(path, max_bytes=100_000), soon=at_once)
    audit.call(Identity("ws", token="other"), "session/prompt", session="s")
    for number in range(100_000):
        audit.call(VIEWER, "session/rename", session=f"s{number % 7}")
        if number % 20 == 0:
            audit.call(VIEWER, "session/cancel", session=f"odd{number}")
    audit.close()
    found = lines(path)
    assert [one.get("token") for one in found[:3]] == [None, "other", "viewer"]
    renames = [one for one in found if one.get("method") == "session/rename"]
    assert sum(one.get("lines", 1) for one in renames) == 100_000
    assert {one["session"] for one in renames} == {f"s{number}" for number in range(7)}
    assert verify(log_files(path)).whole_from == 1


async def test_the_changes_of_local_clients_and_few_of_a_token_are_listed_one_by_one(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.log")
    audit = Audit(LogFile(path), soon=at_once)
    for who, number in ((Identity("unix", uid=1, pid=2), 300), (VIEWER, 100)):
        for _ in range(number):
            audit.call(who, "session/prompt", session="s")
    audit.close()
    assert [one.get("lines") for one in lines(path)] == [None] * 401


async def test_reads_are_summed_up_in_each_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "audit.log")
    audit = Audit(LogFile(path), soon=at_once)
    for number in range(1, 4):
        for _ in range(number):
            audit.read(VIEWER)
        audit._sum_up()
    audit.close()
    assert [one["lines"] for one in lines(access_path(path))] == [1, 2, 3]


async def test_failures_refusals_and_connections_rotate_their_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "LogFile", lambda path: LogFile(path, max_bytes=2000))
    path = str(tmp_path / "audit.log")
    audit = Audit(LogFile(path, max_bytes=2000), soon=at_once)
    audit.call(VIEWER, "session/prompt", session="s")
    for number in range(500):
        audit.note("connected", VIEWER)
        audit.note("refused", VIEWER, outcome="401")
        audit.call(VIEWER, f"m{number}", outcome="-32003")
    audit.close()
    assert [one.get("method") for one in lines(path)] == [None, "session/prompt"]
    found = verify(log_files(access_path(path)))
    assert (found.problems, found.last, found.whole_from > 1) == ((), 1500, True)


async def test_calls_of_a_viewer_are_not_written_to_the_log_of_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        viewer = Grant("viewer", frozenset({"view"}))
        connection = ClientConnection(service.daemon, Mute(), VIEWER, label="ws", grant=viewer)  # type: ignore[arg-type]
        for method in METHODS.values():
            if viewer.may(method.role):
                service.daemon.note(connection, method.name, None, None)
            else:
                service.daemon.note(connection, method.name, None, RpcError(-32003, "no"))
        assert changes(service, tmp_path) == ["opened"]
        service.daemon.note(connection, "session/prompt", None, None)
        assert changes(service, tmp_path) == ["opened", "call"]


def changes(service: Running, home: Path) -> list[str]:
    service.daemon.parts.audit.flush()
    return [one["event"] for one in lines(str(home / "audit.log"))]


async def test_an_incomplete_log_names_where_it_breaks(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = Audit(LogFile(str(path)), soon=at_once)
    for number in range(9):
        audit.call(VIEWER, f"m{number}")
    audit.close()
    whole = path.read_bytes().splitlines(keepends=True)
    assert verify([str(path)]).whole_from == 1
    path.write_bytes(b"".join(whole[4:]))
    assert (verify([str(path)]).whole_from, verify([str(path)]).problems) == (5, ())
    path.write_bytes(b"".join(whole[:3] + whole[5:]))
    assert (verify([str(path)]).whole_from, len(verify([str(path)]).problems)) == (6, 1)
    path.write_bytes(b"".join(whole[:-1]) + whole[-1].replace(b"m8", b"m0"))
    assert verify([str(path)]).whole_from == 0


async def test_extensions_that_connect_and_tokens_that_are_revoked_stay_on_record(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.log")
    audit = Audit(LogFile(path), soon=at_once)
    audit.note("connected", VIEWER, method="/ext", session="s")
    audit.note("revoked", VIEWER)
    audit.note("paired", VIEWER)
    audit.note("unpaired", VIEWER)
    audit.call(VIEWER, "/v1/respond", outcome="500")  # It may have run tools before it failed.
    audit.close()
    assert [one["event"] for one in lines(path)] == [
        "opened", "connected", "revoked", "paired", "unpaired", "call",
    ]  # fmt: skip


#: What an attacker does to the files of a log, the oldest first; its last line may be cut off without a trace.
HARM: dict[str, Callable[[list[Path]], object]] = {
    "a file is removed": lambda files: files[1].unlink(),
    "a file is emptied": lambda files: files[1].write_bytes(b""),
    "two files are swapped": lambda files: swap(files[0], files[1]),
    "a file is there twice": lambda files: files[1].write_bytes(files[1].read_bytes() * 2),
    "the order of lines is turned": lambda files: files[1].write_bytes(
        b"".join(reversed(files[1].read_bytes().splitlines(keepends=True)))
    ),
    "a file is cut short": lambda files: files[1].write_bytes(files[1].read_bytes()[:-300]),
    "a line is put in": lambda files: files[1].write_bytes(b'{"n":1}\n' + files[1].read_bytes()),
}


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
def test_harm_to_rotated_files_is_found_and_what_is_whole_is_named(
    harm: Callable[[list[Path]], object], tmp_path: Path
) -> None:
    path = str(tmp_path / "audit.log")
    audit = Audit(LogFile(path, max_bytes=2000), soon=at_once)
    for number in range(36):
        audit.call(Identity("unix", uid=1, pid=number), f"m{number}")
    audit.close()
    files = [Path(file) for file in log_files(path)]
    third = json.loads(files[2].read_bytes().splitlines()[0])["n"]
    assert verify(map(str, files)).whole_from == 1
    harm(files)
    found = verify(log_files(path))
    assert found.problems
    assert found.whole_from <= third
    assert found.whole_from > 1
    assert found.last == 37
