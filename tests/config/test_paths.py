"""Paths of the daemon: precedence of settings, impossible paths, and the names of pipes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zot.config.paths import DaemonPaths, find_socket, locate, path_hash, pipe_name, siphash13
from zot.errors import ConfigError, UsageError

HOME = {"HOME": "/home/me"}


def test_the_default_path_is_where_other_clients_look() -> None:
    assert locate(HOME, platform="linux") == DaemonPaths(
        socket="/home/me/.zeroclaw/data/daemon.sock", data_dir="/home/me/.zeroclaw/data"
    )


def test_a_home_of_zot_is_the_configuration_directory() -> None:
    assert locate({**HOME, "ZOT_HOME": "/srv/zot"}, platform="linux") == DaemonPaths(
        socket="/srv/zot/data/daemon.sock", data_dir="/srv/zot/data"
    )


def test_a_data_directory_is_the_data_directory_and_has_its_own_journal() -> None:
    assert locate({**HOME, "ZOT_HOME": "/srv/zot", "ZEROCLAW_DATA_DIR": "/d"}, platform="linux") == DaemonPaths(
        socket="/d/daemon.sock", data_dir="/d", journal="/d/journal.db"
    )


def test_a_configuration_directory_wins_over_a_data_directory() -> None:
    env = {**HOME, "ZEROCLAW_DATA_DIR": "/d", "ZEROCLAW_CONFIG_DIR": "/c"}
    assert locate(env, platform="linux") == DaemonPaths(
        socket="/c/data/daemon.sock", data_dir="/c/data", config_dir="/c", journal="/c/data/journal.db"
    )


def test_the_flag_wins_over_the_environment() -> None:
    env = {**HOME, "ZEROCLAW_DATA_DIR": "/d", "ZEROCLAW_CONFIG_DIR": "/c"}
    assert locate(env, config_dir="/f", platform="linux") == DaemonPaths(
        socket="/f/data/daemon.sock", data_dir="/f/data", config_dir="/f", journal="/f/data/journal.db"
    )


def test_a_named_socket_is_taken_verbatim_and_moves_nothing_else() -> None:
    env = {**HOME, "ZEROCLAW_SOCKET": " ~/odd name.sock"}
    assert locate(env, platform="linux") == DaemonPaths(socket=" ~/odd name.sock", data_dir="/home/me/.zeroclaw/data")


def test_the_socket_of_the_flag_wins_over_all() -> None:
    env = {**HOME, "ZEROCLAW_SOCKET": "/e.sock"}
    assert locate(env, socket="/f.sock", config_dir="/c", platform="linux") == DaemonPaths(
        socket="/f.sock", data_dir="/c/data", config_dir="/c", journal="/c/data/journal.db"
    )


@pytest.mark.parametrize("name", ["ZEROCLAW_SOCKET", "ZEROCLAW_CONFIG_DIR", "ZEROCLAW_DATA_DIR", "ZOT_HOME"])
def test_an_empty_variable_counts_as_unset(name: str) -> None:
    assert locate({**HOME, name: ""}, platform="linux") == locate(HOME, platform="linux")


def test_directories_of_the_environment_may_begin_with_the_home() -> None:
    assert locate({**HOME, "ZEROCLAW_CONFIG_DIR": " ~/c "}, platform="linux").config_dir == "/home/me/c"
    assert locate({**HOME, "ZEROCLAW_DATA_DIR": "~"}, platform="linux").data_dir == "/home/me"


def test_relative_directories_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate(HOME, config_dir="c", platform="linux").data_dir == str(tmp_path / "c" / "data")
    assert locate(HOME, socket="s.sock", platform="linux").socket == "s.sock"


def test_a_relative_directory_needs_one_to_be_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigError, match="the current directory no longer exists"):
        locate(HOME, config_dir="c")


@pytest.mark.parametrize("flag", ["socket", "config_dir"])
def test_an_empty_flag_is_wrong_usage(flag: str) -> None:
    with pytest.raises(UsageError, match="this one is empty"):
        locate(HOME, **{flag: ""})


def test_without_a_home_only_a_named_socket_can_be_found() -> None:
    with pytest.raises(ConfigError, match="set HOME, or use --config-dir or --socket"):
        locate({}, platform="linux")
    with pytest.raises(ConfigError, match="set HOME"):
        find_socket({})
    assert find_socket({"ZEROCLAW_SOCKET": "/x.sock"}) == "/x.sock"


@pytest.mark.parametrize(("platform", "limit"), [("linux", 107), ("darwin", 103)])
def test_an_overlong_path_is_refused_with_the_limit_and_the_remedy(platform: str, limit: int) -> None:
    fits = "/" + "é" * ((limit - 1) // 2)
    assert len(os.fsencode(fits)) == limit
    assert locate(HOME, socket=fits, platform=platform).socket == fits
    with pytest.raises(ConfigError, match=rf"{limit + 1} bytes.* {limit} at most: name a shorter one with --socket or"):
        locate(HOME, socket=fits + "x", platform=platform)
    with pytest.raises(ConfigError, match=f" {limit} at most"):
        locate({"HOME": "/" + "h" * 100}, platform=platform)


@pytest.mark.parametrize("path", ["/tmp/", "\0abstract", "a\0b"])
def test_an_impossible_file_name_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a file"):
        locate(HOME, socket=path, platform="linux")


# Pipes of Windows.


def test_a_pipe_is_named_after_the_data_directory() -> None:
    place = locate({"USERPROFILE": r"C:\Users\me"}, platform="win32")
    assert place == DaemonPaths(socket=r"\\.\pipe\zeroclaw-8ea9bf96b4288efa", data_dir=r"C:\Users\me\.zeroclaw\data")
    named = {"USERPROFILE": r"C:\Users\me", "ZEROCLAW_SOCKET": r"\\.\pipe\mine"}
    assert locate(named, platform="win32").socket == r"\\.\pipe\mine"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/.zeroclaw/data", 0xEDC492BDB5C73A2F),
        ("/home/me/.zeroclaw/data/", 0xEDC492BDB5C73A2F),
        ("/home//me/./.zeroclaw/data", 0xEDC492BDB5C73A2F),
        ("relative/x", 0x4083BF0CC3620C45),
        ("a", 0x5EFAA56E1B6D9DF7),
    ],
)
def test_paths_are_hashed_as_other_programs_hash_them(path: str, expected: int) -> None:
    assert path_hash(path.encode().split(b"/")) == expected


def test_a_drive_is_part_of_the_hash_and_its_letter_has_no_case() -> None:
    assert pipe_name(r"c:/Users\me\.zeroclaw\data\\") == r"\\.\pipe\zeroclaw-8ea9bf96b4288efa"
    names = {pipe_name(path) for path in (r"C:\x", r"D:\x", r"\x", r"\\?\C:\x", r"\\host\share\x", r"\\host\other\x")}
    assert len(names) == 6


def test_the_hash_depends_on_every_byte() -> None:
    data = bytes(range(40))
    changed = {siphash13(data[:at] + b"\xff" + data[at + 1 :]) for at in range(40)}
    shorter = {siphash13(data[:size]) for size in range(41)}
    assert len(changed | shorter) == 81
