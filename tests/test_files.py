"""Files of users that are pipes, damaged, nested too deeply or too long: refused at once, with the file's name."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import forked
from harness import PATIENCE_S, environment
from zot import files
from zot import files as private
from zot.agent import output_schema
from zot.config import auth_file
from zot.config.config import resolve
from zot.config.trust import TrustStore
from zot.errors import ConfigError
from zot.extensions import manifest
from zot.extensions.manifest import set_enabled
from zot.files import FileCache, read_content
from zot.providers import user_models
from zot.providers.recording import Recording, header_of


def zot(home: Path, *words: str) -> tuple[int, str, str]:
    env = environment({"ZOT_HOME": str(home), "HOME": str(home)})
    done = forked.run(["-p", "hi", "--provider", "lab", *words], cwd=home, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("name", ["config.toml", "models.json", "SYSTEM.md"])
def test_a_pipe_among_the_files_of_zot_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert zot(tmp_path) == (1, "", f"zot: {tmp_path / name}: not a regular file\n")


@pytest.mark.parametrize("flag", ["--replay", "--output-schema"])
def test_a_named_pipe_is_refused_at_once(tmp_path: Path, flag: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert zot(tmp_path, flag, "pipe") == (1, "", "zot: pipe: not a regular file\n")


def test_a_script_may_come_from_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text('say "from a pipe"'))
    writer.start()
    assert zot(tmp_path, "--script", "pipe") == (0, "from a pipe\n", "")
    writer.join(PATIENCE_S)


def test_a_pipe_without_a_writer_times_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TimeoutError, match=r"a pipe without data for 0\.05 s"):
        read_content(str(tmp_path / "pipe"), pipe_silence_s=0.05)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_path_that_is_neither_file_nor_pipe_is_refused(path: str) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_content(path, pipe_silence_s=1)


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "keys": ("auth.json", lambda home: auth_file.stored(str(home), "anthropic")),
    "keys that are listed": ("auth.json", lambda home: auth_file.check(str(home))),
    "a key that is replaced": ("auth.json", lambda home: auth_file.store(str(home), "x", auth_file.AuthEntry(key="k"))),
    "trust": ("trust.json", lambda home: TrustStore(str(home)).is_trusted(str(home))),
    "trust that is given": ("trust.json", lambda home: TrustStore(str(home)).trust(str(home), ("*.json",))),
    "settings": ("config.toml", lambda home: resolve({}, {"ZOT_HOME": str(home)})),
    "models": ("models.json", lambda home: user_models.load(str(home / "models.json"))),
    "a manifest": ("extension.json", lambda home: manifest.load(str(home))),
    "a manifest that is switched": ("extension.json", lambda home: set_enabled(str(home), enabled=False)),
    "a schema": ("schema.json", lambda home: output_schema.load(str(home / "schema.json"))),
    "a recording": ("r.jsonl", lambda home: Recording.load(str(home / "r.jsonl"))),
    "the header of a recording": ("r.jsonl", lambda home: header_of(str(home / "r.jsonl"))),
}
DAMAGE = {
    "nothing of ours": b"\x7fELF\n",
    "no UTF-8": b'{"\xff": 1, "providers": {"\xff": {}}}\n',
    "deep lists": b"[" * 100_000 + b"\n",
    "deep objects": b'{"anthropic":' * 100_000 + b"\n",
    "closed deep lists": b'{"anthropic": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "deep in a known field": b'{"version": 1, "trusted": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "a number that is too long": b"1" + b"0" * 5_000 + b"\n",
    "deep TOML": b"a = " + b"[" * 10_000,
    "a long number in TOML": b"a = 1" + b"0" * 5_000,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize(("name", "read"), READERS.values(), ids=READERS)
def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, name: str, read: Callable[[Path], object], damage: bytes
) -> None:
    (tmp_path / name).write_bytes(damage)
    (tmp_path / name).chmod(0o600)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_file_that_never_ends_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # nothing is stored
    with pytest.raises(ConfigError, match=f"{path}: longer than {files.MAX_BYTES} bytes"):
        user_models.load(str(path))


@pytest.mark.parametrize(
    "change",
    [
        lambda home: TrustStore(str(home)).trust(str(home)),
        lambda home: TrustStore(str(home)).untrust(str(home)),
        lambda home: auth_file.store(str(home), "anthropic", auth_file.AuthEntry(key="k")),
    ],
    ids=["trust", "untrust", "login"],
)
def test_a_lock_held_by_another_process_times_out(
    tmp_path: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "LOCK_S", 0.05)
    held = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"has been locked by another zot for 0\.05 s; try again"):
            change(tmp_path)
    finally:
        os.close(held)
    change(tmp_path)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file, reads = tmp_path / "file", []

    def load(path: str) -> str:
        reads.append(path)
        return Path(path).read_text()

    def write(text: str) -> None:
        file.write_text(text)
        os.utime(file, (1, len(text)))

    cache = FileCache(load)
    write("one")
    assert [cache.read(str(file)) for _ in range(3)] == ["one"] * 3
    write("four")
    assert [cache.read(str(file)) for _ in range(3)] == ["four"] * 3
    assert len(reads) == 2
    file.write_text("five")  # A moment ago: the next change may not be seen by its time.
    assert cache.read(str(file)) == "five"
    file.write_text("nine")
    assert cache.read(str(file)) == "nine"
