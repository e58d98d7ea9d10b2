"""The file of tokens: private to its owner, and its current content counts."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from zot.errors import ConfigError
from zot.serve.web import Tokens

ONE, OTHER = "one-" * 10, "other" * 8


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_first_token_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "token"
    before = os.umask(0)
    try:
        tokens = Tokens(str(path))
    finally:
        os.umask(before)
    token = path.read_text().strip()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert len(base64.urlsafe_b64decode(token + "=")) == 32
    assert tokens.bearer(token) == "default"
    assert Tokens(str(path)).bearer(token) == "default"
    assert [one.name for one in path.parent.iterdir()] == ["token"]


def test_a_token_has_its_owner_s_name(tmp_path: Path) -> None:
    tokens = Tokens(str(written(tmp_path / "token", f"# mine\n\n{ONE}\n phone:{OTHER} \r\n")))
    given = (ONE, OTHER, ONE[:-1], ONE + "x", "", f"phone:{OTHER}", "\udcff", "# mine")
    assert [tokens.bearer(token) for token in given] == ["default", "phone", None, None, None, None, None, None]


def test_a_removed_token_is_refused_and_an_added_one_accepted(tmp_path: Path) -> None:
    path = written(tmp_path / "token", f"{ONE}\n")
    tokens = Tokens(str(path))
    path.write_text(f"new:{OTHER}\n")
    assert [tokens.bearer(token) for token in (ONE, OTHER)] == [None, "new"]
    path.write_text("what is this\n")
    assert [tokens.bearer(token) for token in (ONE, OTHER)] == [None, None]
    path.write_text(f"{ONE}\n")
    path.chmod(0o644)
    assert tokens.bearer(ONE) is None
    path.chmod(0o600)
    assert tokens.bearer(ONE) == "default"
    path.unlink()
    assert tokens.bearer(ONE) is None
    assert tokens.bearer(path.read_text().strip()) == "default"


def test_an_invalid_line_refuses_every_token_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "token", f"{ONE}\n")
    tokens = Tokens(str(path))
    assert (tokens.bearer(ONE), caplog.messages) == ("default", [])
    path.write_text(f"{ONE}\nsecret\n")
    assert [tokens.bearer(token) for token in (ONE, OTHER, ONE)] == [None, None, None]
    [told] = caplog.messages
    assert told.startswith(f"{path}:2: expected a token")
    assert told.endswith("until that is fixed, no token is accepted")
    assert not any(token in told for token in ("secret", ONE))
    path.chmod(0o644)
    assert tokens.bearer(ONE) is None
    path.chmod(0o600)
    path.write_text(f"{ONE}\n")
    assert [tokens.bearer(ONE), tokens.bearer(ONE)] == ["default", "default"]
    assert [one.removeprefix(f"{path}: ").partition(",")[0].partition(": ")[0] for one in caplog.messages[1:]] == [
        "others can read it", "it is readable again",
    ]  # fmt: skip


WRONG = {
    "one that can be guessed": ("secret\n", 0o600, ":1: expected a token of 32 to 256"),
    "a strange name": (f"{ONE}\na b:{OTHER}\n", 0o600, ":2: expected"),
    "the same name twice": (f"a:{ONE}\na:{OTHER}\n", 0o600, ":2: expected"),
    "nothing": ("# none\n", 0o600, "it contains no token"),
    "for all to read": (f"{ONE}\n", 0o644, "others can read it"),
    "for a group to read": (f"{ONE}\n", 0o640, "others can read it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_file_is_refused_without_quoting_it(tmp_path: Path, name: str) -> None:
    text, mode, reason = WRONG[name]
    path = written(tmp_path / "token", text, mode)
    with pytest.raises(ConfigError, match=reason) as refused:
        Tokens(str(path))
    assert not any(token in str(refused.value) for token in ("secret", ONE, OTHER))


def test_a_directory_is_not_a_token_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        Tokens(str(tmp_path))
