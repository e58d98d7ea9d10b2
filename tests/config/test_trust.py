from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from zot.config.trust import DEFAULT_DATA, Trusted, TrustStore, fingerprint
from zot.errors import ConfigError, UserError

NOON = "2026-01-01T12:00:00.000Z"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> TrustStore:
    return TrustStore(str(home), now=lambda: NOON)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "run.py").write_text("print('hi')\n")
    return tmp_path / "code"


def test_nothing_is_trusted_at_first(store: TrustStore, code: Path, home: Path) -> None:
    assert not store.is_trusted(str(code))
    assert store.entries() == ()
    assert not store.untrust(str(code))
    assert not (home / "trust.json").exists()


def test_trust_lasts_until_the_code_changes(store: TrustStore, code: Path, home: Path) -> None:
    entry = Trusted(str(code), fingerprint(str(code), DEFAULT_DATA), NOON)
    assert store.trust(str(code), DEFAULT_DATA) == entry
    again = TrustStore(str(home))
    (code / "state.log").write_text("{}")
    assert again.is_trusted(str(code), DEFAULT_DATA)
    assert again.entries() == (entry,)
    (code / "run.py").write_text("print('ho')\n")
    assert not again.is_trusted(str(code), DEFAULT_DATA)
    (code / "run.py").write_text("print('hi')\n")
    assert again.is_trusted(str(code), DEFAULT_DATA)


def test_trust_can_be_revoked(store: TrustStore, code: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    store.trust(str(other))
    store.trust(str(code))
    assert store.untrust(str(code))
    assert not store.is_trusted(str(code))
    assert [entry.directory for entry in store.entries()] == [str(other)]
    other.rmdir()
    assert store.untrust(str(other))


def test_trust_is_bound_to_the_place_too(store: TrustStore, code: Path, tmp_path: Path) -> None:
    store.trust(str(code))
    (tmp_path / "link").symlink_to("code")
    assert store.is_trusted(str(tmp_path / "link"))
    code.rename(tmp_path / "moved")
    assert not store.is_trusted(str(tmp_path / "moved"))
    assert not store.is_trusted(str(code))


def test_an_uncheckable_directory_is_not_trusted(store: TrustStore, code: Path) -> None:
    store.trust(str(code))
    os.mkfifo(code / "pipe")
    assert not store.is_trusted(str(code))
    with pytest.raises(UserError, match="neither a file nor a directory"):
        store.trust(str(code))


def test_only_the_user_may_read_the_file(store: TrustStore, code: Path, home: Path) -> None:
    before = os.umask(0)
    try:
        store.trust(str(code))
    finally:
        os.umask(before)
    assert stat.S_IMODE((home / "trust.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert os.listdir(home) == ["trust.json"]


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_change_is_ignored(mode: int, store: TrustStore, code: Path, home: Path) -> None:
    store.trust(str(code))
    path = home / "trust.json"
    path.chmod(mode)
    told = f"{path} can be changed by others, so zot does not rely on it; try: chmod go-w {path}"
    refused(store, code, told)


def test_a_file_in_a_directory_that_others_can_change_is_ignored(store: TrustStore, code: Path, home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)
    told = f"{home} can be changed by others, so zot does not rely on it; try: chmod go-w {home}"
    refused(store, code, told)
    home.chmod(0o1777)  # sticky: no user replaces files of another
    store.trust(str(code))
    assert store.is_trusted(str(code))


def test_a_file_of_another_user_is_ignored(
    store: TrustStore, code: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.trust(str(code))
    theirs = os.stat_result((0o100600, 0, 0, 1, 1234, 1234, 0, 0, 0, 0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", lambda fd: theirs)
        refused(store, code, f"{home}/trust.json belongs to another user, so zot does not rely on it")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", " is damaged: the JSON ends too early; remove it, and trust again what you need"),
        (
            b'{"version":1,"trusted":[{}]}',
            " is damaged: trusted[0].directory is missing; remove it, and trust again what you need",
        ),
        (b'{"version":2}', " has version 2; this zot knows only version 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_kept_and_named(
    content: bytes, told: str, store: TrustStore, code: Path, home: Path
) -> None:
    store.trust(str(code))
    (home / "trust.json").write_bytes(content)
    refused(store, code, f"{home}/trust.json{told}")
    assert (home / "trust.json").read_bytes() == content


def refused(store: TrustStore, code: Path, told: str) -> None:
    for method in (store.is_trusted, store.trust, store.untrust, lambda _: store.entries()):
        with pytest.raises(ConfigError) as problem:
            method(str(code))
        assert str(problem.value) == told


def test_a_file_that_cannot_be_opened_is_named(store: TrustStore, code: Path, home: Path) -> None:
    (home / "trust.json").mkdir(parents=True)
    refused(store, code, f"{home}/trust.json: Is a directory")


def test_a_failed_write_leaves_the_previous_file(
    store: TrustStore, code: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.trust(str(code))
    before = (home / "trust.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(ConfigError, match=r"trust.json: No space left on device$"):
            store.untrust(str(code))
    assert (home / "trust.json").read_bytes() == before
    assert os.listdir(home) == ["trust.json"]


def test_a_home_that_cannot_be_made_is_named(code: Path) -> None:
    with pytest.raises(ConfigError, match=r"^/dev/null/zot: Not a directory$"):
        TrustStore("/dev/null/zot").trust(str(code))


def test_concurrent_writers_lose_nothing(home: Path, tmp_path: Path) -> None:
    directories = [tmp_path / f"code-{number}" for number in range(20)]
    for directory in directories:
        directory.mkdir()
    threads = [threading.Thread(target=TrustStore(str(home)).trust, args=[str(path)]) for path in directories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert {entry.directory for entry in TrustStore(str(home)).entries()} == {str(path) for path in directories}
