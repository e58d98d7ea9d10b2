"""Sources of a key: their order, refused files, and the error without a key."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from zot.config.auth_file import AuthEntry, check, remove, store, stored
from zot.config.credentials import Credential, find, missing
from zot.config.vendors import VENDORS
from zot.errors import ConfigError

ANTHROPIC = VENDORS["anthropic"]


def write(home: Path, content: Any, *, mode: int = 0o600) -> Path:
    path = home / "auth.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(mode)
    return path


def found(home: Path, given: str | None = None, *, base_url: str = "", **env: str) -> Credential | None:
    return find(ANTHROPIC, given, {"ZOT_HOME": str(home), **env}, base_url=base_url)


def test_an_explicit_key_wins_then_the_environment_then_the_file(tmp_path: Path) -> None:
    write(tmp_path, {"anthropic": {"key": "k3", "command": "echo k4"}})
    assert found(tmp_path, "k1", ANTHROPIC_API_KEY="k2") == Credential("--api-key", key="k1")
    assert found(tmp_path, "", ANTHROPIC_API_KEY="k2") == Credential("ANTHROPIC_API_KEY", key="k2")
    assert found(tmp_path, ANTHROPIC_API_KEY="") == Credential("auth.json", key="k3")
    write(tmp_path, {"anthropic": {"command": "echo k4"}})
    assert found(tmp_path) == Credential("a command in auth.json", command="echo k4")


@pytest.mark.parametrize("content", [None, "", {}, {"openai": {"key": "k"}}])
def test_where_nothing_is_stored_nothing_is_found(tmp_path: Path, content: Any) -> None:
    if content is not None:
        write(tmp_path, content)
    assert found(tmp_path) is None


def test_without_a_home_no_file_is_read() -> None:
    assert find(ANTHROPIC, None, {}) is None


def test_a_missing_key_suggests_remedies() -> None:
    assert str(missing(VENDORS["gemini"], {})) == (
        "no key for gemini: set GEMINI_API_KEY or GOOGLE_API_KEY, or run: zot login gemini. "
        'The provider lab needs none: --provider lab (in Python: provider="lab")'
    )


def test_a_key_for_another_address_is_not_reported_as_missing(tmp_path: Path) -> None:
    write(tmp_path, {"gemini": {"key": "k3", "base_url": "https://proxy.example"}})
    assert str(missing(VENDORS["gemini"], {"ZOT_HOME": str(tmp_path)})) == (
        "no key for gemini at its own address; one is stored, but for another: set GEMINI_API_KEY or GOOGLE_API_KEY, "
        'or run: zot login gemini. The provider lab needs none: --provider lab (in Python: provider="lab")'
    )


def test_lab_needs_no_key_and_no_file(tmp_path: Path) -> None:
    write(tmp_path, "{}", mode=0o644)
    assert find(VENDORS["lab"], None, {"ZOT_HOME": str(tmp_path)}) is None


def test_a_provider_s_stored_key_is_not_sent_to_another_server(tmp_path: Path) -> None:
    write(tmp_path, {"anthropic": {"key": "k3"}})
    there = "https://proxy.example"
    assert found(tmp_path, base_url=there) is None
    assert found(tmp_path, base_url=there, ANTHROPIC_API_KEY="k2") == Credential("ANTHROPIC_API_KEY", key="k2")
    assert found(tmp_path, "k1", base_url=there) == Credential("--api-key", key="k1")
    assert found(tmp_path, base_url="https://api.anthropic.com/v1/") == Credential("auth.json", key="k3")


def test_a_key_stored_for_another_server_is_sent_there_only(tmp_path: Path) -> None:
    write(tmp_path, {"anthropic": {"key": "k3", "base_url": "https://proxy.example/claude/"}})
    assert found(tmp_path, base_url="https://proxy.example/claude") == Credential("auth.json", key="k3")
    assert found(tmp_path, base_url="https://proxy.example") is None
    assert found(tmp_path) is None


@pytest.mark.parametrize("key", ["sk-ö", "sk-1\n", "sk\x00", "sk\r\nx: y"])
@pytest.mark.parametrize("place", ["given", "environment", "file"])
def test_a_key_that_no_header_can_hold_is_refused_without_repeating_it(tmp_path: Path, key: str, place: str) -> None:
    if place == "file":
        write(tmp_path, {"anthropic": {"key": key}})
    variable = key if place == "environment" else ""
    with pytest.raises(ConfigError, match="copy the whole key again") as caught:
        found(tmp_path, key if place == "given" else None, ANTHROPIC_API_KEY=variable)
    assert key not in str(caught.value)


def test_a_credential_is_shown_without_its_secrets() -> None:
    values = (
        Credential("auth.json", key="sk-1", command="echo sk-1"),
        AuthEntry(key="sk-1"),
        AuthEntry(command="echo sk-1"),
    )
    assert [repr(value) for value in values] == ["Credential(auth.json)", "Entry(key)", "Entry(command)"]


# The file must be ours alone.


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path, {"anthropic": {"key": "sk-secret"}}, mode=mode)
    with pytest.raises(ConfigError) as caught:
        found(tmp_path)
    assert str(caught.value) == (
        f"{path} is open to others (mode {mode:04o}), so zot reads no key from it; try: chmod 600 {path}"
    )


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_that_is_ours_alone_is_read(tmp_path: Path, mode: int) -> None:
    write(tmp_path, {"anthropic": {"key": "k"}}, mode=mode)
    assert stored(str(tmp_path), "anthropic") == AuthEntry(key="k")


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"anthropic": {"key": "k"}})
    stranger = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(ConfigError, match=rf"^{path} belongs to another user"):
        found(tmp_path)


def test_a_link_is_judged_by_its_target(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = write(elsewhere, {"anthropic": {"key": "k"}})
    (tmp_path / "auth.json").symlink_to(path)
    assert found(tmp_path) == Credential("auth.json", key="k")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"is open to others \(mode 0644\)"):
        found(tmp_path)


def test_a_path_that_is_not_a_file_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("pipe", "directory"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "auth.json", 0o600)
    (tmp_path / "directory" / "auth.json").mkdir(mode=0o700)
    for name in ("pipe", "directory"):
        with pytest.raises(ConfigError, match=r"auth\.json is not a file"):
            found(tmp_path / name)


@pytest.mark.parametrize("content", ["{", "[]", '"sk-secret"', '{"anthropic": sk-secret}', "\x00", "[" * 100_000])
def test_a_damaged_file_is_named_and_not_quoted(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        found(tmp_path)
    assert str(caught.value) == f'{path} is damaged: it must be like {{"anthropic": {{"key": "..."}}}}'


def test_a_file_that_is_far_too_long_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, " " * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="longer than 1048576 bytes"):
        found(tmp_path)


@pytest.mark.parametrize("entry", [{}, None, "sk-secret", {"key": 1}, {"key": ""}, {"token": "sk-secret"}])
def test_an_entry_without_a_key_suggests_how_to_add_one(tmp_path: Path, entry: Any) -> None:
    path = write(tmp_path, {"anthropic": entry, "openai": {"key": "k"}})
    with pytest.raises(ConfigError) as caught:
        found(tmp_path)
    assert str(caught.value) == (
        f'{path}: the entry for anthropic has neither "key" nor "command"; try: zot login anthropic'
    )
    assert stored(str(tmp_path), "openai") == AuthEntry(key="k")


# Storing.


def test_storing_creates_a_private_directory_and_file(tmp_path: Path) -> None:
    home = tmp_path / "a" / "b"
    store(str(home), "anthropic", AuthEntry(key="k"))
    assert (home.stat().st_mode & 0o777, (home / "auth.json").stat().st_mode & 0o777) == (0o700, 0o600)
    assert os.listdir(home) == ["auth.json"]
    assert json.loads((home / "auth.json").read_text()) == {"anthropic": {"key": "k"}}


def test_unknown_entries_survive_a_change(tmp_path: Path) -> None:
    strange = {"acme": {"token": {"a": [1, 2.5]}}, "openai": {"key": "k", "note": "mine"}, "version": 7}
    write(tmp_path, strange)
    store(str(tmp_path), "anthropic", AuthEntry(command="pass show x"))
    content = json.loads((tmp_path / "auth.json").read_text())
    assert content == {**strange, "anthropic": {"command": "pass show x"}}
    assert remove(str(tmp_path), "anthropic")
    assert json.loads((tmp_path / "auth.json").read_text()) == strange
    assert not remove(str(tmp_path), "anthropic")
    assert check(str(tmp_path)) == ("acme", "openai", "version")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = write(elsewhere, {"openai": {"key": "k"}})
    (tmp_path / "auth.json").symlink_to(path)
    store(str(tmp_path), "anthropic", AuthEntry(key="k"))
    assert (tmp_path / "auth.json").is_symlink()
    assert json.loads(path.read_text()) == {"openai": {"key": "k"}, "anthropic": {"key": "k"}}


def test_a_file_that_is_open_to_others_is_not_added_to(tmp_path: Path) -> None:
    path = write(tmp_path, {"openai": {"key": "k"}}, mode=0o644)
    for change in (
        lambda: store(str(tmp_path), "anthropic", AuthEntry(key="k")),
        lambda: remove(str(tmp_path), "openai"),
    ):
        with pytest.raises(ConfigError, match="is open to others"):
            change()
    assert json.loads(path.read_text()) == {"openai": {"key": "k"}}


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/home: Not a directory$"):
        store(str(tmp_path / "file" / "home"), "anthropic", AuthEntry(key="k"))


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    names = [f"provider-{number}" for number in range(24)]
    threads = [
        threading.Thread(target=store, args=(str(tmp_path), name, AuthEntry(key=f"k-{name}")), name=name)
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    content = json.loads((tmp_path / "auth.json").read_text())
    assert content == {name: {"key": f"k-{name}"} for name in names}
    assert os.listdir(tmp_path) == ["auth.json"]
