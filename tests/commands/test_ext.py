"""`zot ext`: extensions listed, installed, removed, switched, trusted, and their logs read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from forked import ForkServer
from harness import PATIENCE_S, eventually, read_some

from .ext_shell import Ext


@pytest.fixture
def ext(tmp_path: Path, fork_server: ForkServer) -> Ext:
    return Ext(tmp_path, fork_server)


def put(place: Path, name: str, **more: Any) -> Path:
    """Write an extension that does nothing."""
    directory = place / name
    directory.mkdir(parents=True)
    (directory / "extension.json").write_text(json.dumps({"name": name, "exec": "./run", **more}, indent=2) + "\n")
    (directory / "run").write_text("#!/bin/sh\n")
    (directory / "run").chmod(0o755)
    return directory


def test_extensions_are_listed_with_the_reason_they_do_not_run(ext: Ext) -> None:
    nothing = "zot: no extensions found; install one with: zot ext install DIR, or create one with: zot ext new NAME\n"
    assert ext.ext("list") == ("", nothing, 0)
    put(ext.installed, "good", version="1.2", description="Does\n good.\x1b[2J")
    put(ext.installed, "off", enabled=False)
    put(ext.installed, "other").joinpath("extension.json").write_text('{"name": "good", "exec": "x"}')
    put(ext.installed, "wrong").joinpath("extension.json").write_text('{"name": "wrong"}')
    put(ext.local, "clone")
    log = ext.home / "logs" / "ext-good.log"
    log.parent.mkdir()
    crash = "[zot] 2026-01-02T03:04:05.678Z exited with 3\n"
    log.write_text(f"[zot] 2026-01-02T03:04:05.000Z starting good 1.2\nTraceback\n{crash}")
    assert ext.ext("list") == (
        f"clone  project  untrusted\n    {ext.local}/clone, with full user rights\n"
        "    does not run: it is not trusted as it is now; trust it with: zot ext trust clone\n"
        f"good 1.2  global  runs\n    Does good.\\x1b[2J\n    {ext.installed}/good, with full user rights\n"
        "    last problem, 2026-01-02T03:04:05.678Z: exited with 3\n"
        f"good  global  shadowed\n    {ext.installed}/other, with full user rights\n"
        f"    does not run: {ext.installed}/good has the same name and comes first\n"
        "    last problem, 2026-01-02T03:04:05.678Z: exited with 3\n"
        f"off  global  disabled\n    {ext.installed}/off, with full user rights\n"
        "    does not run: it is disabled; enable it with: zot ext enable off\n"
        f"wrong  global  broken\n    {ext.installed}/wrong\n"
        f"    does not run: {ext.installed}/wrong/extension.json: `exec` is missing; "
        'it must be the program to start, such as "./main.py"\n',
        "",
        0,
    )
    again = "[zot] 2026-01-02T04:00:00.000Z starting good 1.2\n"
    assert ext.listed()[1] == {
        "name": "good", "version": "1.2", "source": "global", "standing": "runs", "description": "Does\n good.\x1b[2J",
        "language": "", "directory": f"{ext.installed}/good", "why_not": "", "rights": "full user rights",
        "last_problem": {"at": "2026-01-02T03:04:05.678Z", "text": "exited with 3"},
    }  # fmt: skip
    broken = "[zot] 2026-01-02T04:00:00.500Z says it is 'a', but its manifest says 'good'\n"
    killed = "[zot] 2026-01-02T04:00:01.000Z was killed by signal 15\n"
    log.write_text(f"{crash}{again}[zot] 2026-01-02T04:00:00.100Z earlier\n{broken}{killed}")
    assert ext.listed()[1]["last_problem"] == {
        "at": "2026-01-02T04:00:01.000Z",
        "text": "says it is 'a', but its manifest says 'good'; was killed by signal 15",
    }
    log.write_text(f"{crash}{again}")
    assert ext.listed()[1]["last_problem"]["text"] == "exited with 3"
    log.write_text(f"{crash}{again}[zot] 2026-01-02T04:00:01.000Z exited with 0\n")
    assert ext.listed()[1]["last_problem"] is None
    after = "[zot] 2026-01-02T04:00:00.000Z starting again: good 1.2\n[zot] 2026-01-02T04:00:01.000Z exited with 0\n"
    log.write_text(f"{again}{crash}{after}")
    assert ext.listed()[1]["last_problem"]["text"] == "exited with 3", "it ended well after it had crashed"


def test_a_damaged_list_of_trusted_extensions_is_named(ext: Ext) -> None:
    put(ext.local, "clone")
    ext.home.mkdir(exist_ok=True)
    (ext.home / "trust.json").write_text('{"version":1,"trusted":[{"directory":3}]}')
    damage = f"{ext.home}/trust.json is damaged: trusted[0].directory must be a string, not a whole number; "
    advice = "remove it, and trust again what you need"
    out, err, code = ext.ext("list")
    assert f"    does not run: {damage}{advice}\n" in out
    assert (err, code) == ("", 0)
    assert ext.ext("trust", "clone") == ("", f"zot: {damage}{advice}\n", 1)


def test_extensions_named_in_the_settings_are_listed_first(ext: Ext) -> None:
    put(ext.installed, "one")
    named = put(ext.user / "mine", "one", version="2")
    (ext.home / "config.toml").write_text(f'[agents.default]\next = ["{named}"]\nno_ext = true\n')
    said = ext.ext("list", "--json")
    listed = [json.loads(line) for line in said.out.split("\n")[:-1]]
    assert [(one["directory"], one["source"], one["standing"]) for one in listed] == [
        (str(named), "ext", "runs"), (str(ext.installed / "one"), "global", "shadowed"),
    ]  # fmt: skip
    assert said.err == "zot: config.toml sets no_ext: sessions load only the extensions named with --ext\n"
    (ext.home / "config.toml").write_text("[agents.default]\nlunch = 1\n")
    said = ext.ext("list")
    assert said.out.startswith("one  global  runs\n")
    assert said.err.endswith("; continuing without it\n")


def test_permissions_are_listed_with_the_reason_they_cannot_be_enforced(ext: Ext) -> None:
    one = put(
        ext.installed, "one", permissions={"fs.read": ["~/x\n", "$CWD"], "net": True, "env": False, "tools": ["a"]}
    )
    two = put(ext.installed, "two", permissions={})
    ext.env["PATH"] = str(ext.user / "bin")
    (ext.user / "bin").mkdir()
    why = (
        "it declares permissions, which need bubblewrap, and bwrap is not on the PATH; "
        "to run it without a sandbox: --unsandboxed-ext"
    )
    assert ext.ext("list").out == (
        f"one  global  refused\n    {one}, may use: fs.read (~/x\\n, $CWD); net; tools (a)\n    does not run: {why}\n"
        f"two  global  refused\n    {two}, with access to its own directory only\n    does not run: {why}\n"
    )
    bwrap = ext.user / "bin" / "bwrap"
    bwrap.write_text("#!/bin/sh\necho not permitted >&2; exit 1\n")
    bwrap.chmod(0o755)
    forbidden = (
        "it declares permissions, which need bubblewrap, which does not work here: not permitted; "
        "to run it without a sandbox: --unsandboxed-ext"
    )
    assert [(one["standing"], one["why_not"]) for one in ext.listed()] == [("refused", forbidden)] * 2
    (ext.home / "config.toml").write_text("[agents.default]\nunsandboxed_ext = true\n")
    assert ext.standings() == [("one", "global", "runs"), ("two", "global", "runs")]
    (ext.home / "config.toml").unlink()
    bwrap.unlink()
    bwrap.symlink_to("/bin/true")
    assert ext.standings() == [("one", "global", "runs"), ("two", "global", "runs")]
    assert ext.listed()[1]["rights"] == {
        "fs.read": [], "fs.write": [], "net": False, "exec": False, "env": False, "tools": False, "events": False,
        "intercept": False, "ui": False, "modify": False,
    }  # fmt: skip


def test_an_installed_extension_is_a_full_copy_under_its_own_name(ext: Ext) -> None:
    source = put(ext.user / "work", "tool", version="1")
    source.rename(source := source.with_name("some directory"))
    (source / "sub").mkdir()
    (source / "sub" / "binary").write_bytes(bytes(range(256)) * 5000)
    (source / "link").symlink_to("sub/binary")
    (source / "away").symlink_to("/etc")
    assert ext.ext("install", "../work/some directory") == (f"installed {ext.installed}/tool\n", "", 0)
    copy = ext.installed / "tool"
    assert sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*")) == [
        "away", "extension.json", "link", "run", "sub", "sub/binary",
    ]  # fmt: skip
    assert (copy / "sub" / "binary").read_bytes() == (source / "sub" / "binary").read_bytes()
    assert ((copy / "link").readlink(), (copy / "away").readlink()) == (Path("sub/binary"), Path("/etc"))
    assert [oct((copy / name).stat().st_mode) for name in ("run", "extension.json", ".")] == [
        "0o100700", "0o100600", "0o40700",
    ]  # fmt: skip
    how = "to replace it: zot ext remove tool, which also removes its data"
    assert ext.ext("install", str(source)) == ("", f"zot: tool is installed already in {copy}; {how}\n", 1)
    assert ext.ext("remove", "tool", typed=b"n\n") == (
        "", f"remove {copy}? [y/N] zot: {copy} was not removed; to skip the question: --yes\n", 1,
    )  # fmt: skip
    assert ext.ext("remove", "tool", "--yes") == (f"removed {copy}\n", "", 0)
    assert list(ext.installed.iterdir()) == []
    assert (source / "sub" / "binary").exists()


def test_removing_a_linked_extension_keeps_the_link_s_target(ext: Ext) -> None:
    source = put(ext.user, "work")
    ext.installed.mkdir(parents=True)
    (ext.installed / "work").symlink_to(source)
    assert json.loads(ext.ext("remove", "work", "-y", "--json").out)["directory"] == f"{ext.installed}/work"
    assert (list(ext.installed.iterdir()), (source / "run").exists()) == ([], True)


def test_an_unreadable_place_is_listed_and_never_removed(ext: Ext) -> None:
    ext.home.mkdir()
    ext.installed.symlink_to("extensions")
    [listed] = ext.listed()
    assert (listed["standing"], listed["why_not"]) == (
        "broken", f"{ext.installed}: Too many levels of symbolic links",
    )  # fmt: skip
    none = "zot: no extension is named 'extensions'; known: none\n"
    assert ext.ext("remove", "--yes", "extensions") == ("", none, 1)
    assert ext.installed.is_symlink()


def test_a_failed_install_leaves_nothing(ext: Ext) -> None:
    pipe = put(ext.user, "pipe")
    os.mkfifo(pipe / "fifo")
    empty = ext.user / "empty"
    empty.mkdir()
    around = put(ext.user.parent, f"{ext.user.name}-around")
    wrong = put(ext.user, "wrong")
    (wrong / "extension.json").write_text('{"name": "../up", "exec": "x"}')
    rule = "letters, digits, `.`, `_` and `-`, at most 64 of them, the first a letter or a digit"
    pattern = f'`name` must be {rule}; but it is "../up"'
    for source, reason in [
        (str(pipe), f"{pipe}/fifo is neither a file nor a directory nor a link"),
        (str(empty), f"{empty} is not an extension directory: it has no extension.json"),
        ("nowhere", "nowhere: no such directory"),
        (str(wrong / "run"), f"{wrong}/run: not a directory"),
        (str(wrong), f"{wrong}/extension.json: {pattern}"),
        ("--upload-pack=touch x.git", "--upload-pack=touch x.git is not the address of a repository"),
        ("ext::sh -c id", "ext::sh -c id: ext is not allowed, only https, ssh, git, file"),
        ("http://localhost/x.git", "http://localhost/x.git: http is not allowed, only https, ssh, git, file"),
    ]:
        assert ext.ext("install", "--", source) == ("", f"zot: {reason}\n", 1)
    above = str(ext.user)
    (ext.user / "extension.json").write_text('{"name": "all", "exec": "x"}')
    assert ext.ext("install", above) == (
        "", f"zot: {above} contains {ext.installed}, so it cannot be copied there\n", 1,
    )  # fmt: skip
    assert [*ext.home.rglob("*")] in ([], [ext.installed])
    assert (around / "run").exists()


def git(directory: Path, *argv: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *who, *argv], cwd=directory, check=True, capture_output=True, timeout=PATIENCE_S)


def test_a_repository_is_cloned_without_its_history(ext: Ext) -> None:
    work = put(ext.user, "work")
    git(work, "init", "-q")
    (work / "away").symlink_to("/usr")
    for version in ("1", "2"):
        (work / "version").write_text(version)
        git(work, "add", ".")
        git(work, "commit", "-qm", version)
    said = ext.ext("install", f"file://{work}", "--json")
    copy = ext.installed / "work"
    assert (json.loads(said.out), said.err, said.code) == (
        {"name": "work", "version": "", "directory": str(copy)}, "", 0,
    )  # fmt: skip
    assert (copy / "version").read_text() == "2"
    assert len((copy / ".git" / "shallow").read_text().split()) == 1
    assert [path for path in (copy, *copy.rglob("*")) if not path.is_symlink() and path.stat().st_mode & 0o077] == []
    assert ((copy / "away").is_symlink(), (copy / "run").stat().st_mode & 0o777) == (True, 0o700)
    (work / "extension.json").unlink()
    git(work, "commit", "-qam", "none")
    again = ext.ext("install", f"file://{work}")
    assert again == ("", f"zot: file://{work} is not an extension directory: it has no extension.json\n", 1)
    missing = f"zot: git clone file://{work}/no: '{work}/no' does not appear to be a git repository; "
    assert ext.ext("install", f"file://{work}/no").err.startswith(missing)
    ext.env["GIT_SSH_COMMAND"] = "echo 'Warning: a new key' >&2; echo 'ssh: no such host' >&2; false"
    told = "zot: git clone git@nohost.invalid:x.git: ssh: no such host; Could not read from remote repository.\n"
    assert ext.ext("install", "git@nohost.invalid:x.git") == ("", told, 1)
    assert os.listdir(ext.installed) == ["work"]


def test_an_interrupted_install_leaves_nothing_or_leftovers_that_the_next_removes(ext: Ext, tmp_path: Path) -> None:
    git_that_hangs = tmp_path / "bin" / "git"
    git_that_hangs.parent.mkdir()
    git_that_hangs.write_text("#!/bin/sh\nfor where; do :; done\nmkdir $where; echo $$ >$where/pid\nexec sleep 60\n")
    git_that_hangs.chmod(0o755)
    env = {**ext.env, "PATH": f"{git_that_hangs.parent}:{ext.env['PATH']}"}

    def hanging() -> tuple[subprocess.Popen[bytes], int]:
        process = ext.start("ext", "install", "https://localhost/x", env=env)
        assert eventually(lambda: [*ext.installed.glob(".*/*/pid")] != [])
        [pid] = ext.installed.glob(".*/*/pid")
        assert eventually(lambda: pid.read_text().endswith("\n"))
        return process, int(pid.read_text())

    for number in (signal.SIGINT, signal.SIGTERM):
        process, pid = hanging()
        process.send_signal(number)
        assert process.communicate(timeout=PATIENCE_S) == (b"", b"zot: interrupted; nothing was installed\n")
        assert (process.returncode, os.listdir(ext.installed)) == (1, [])
        assert not os.path.exists(f"/proc/{pid}")
    process, pid = hanging()
    busy, _ = hanging_beside(ext, env)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
    assert (len(os.listdir(ext.installed)), ext.standings()) == (2, [])
    assert ext.ext("install", str(put(ext.user, "next"))).code == 0
    assert len(os.listdir(ext.installed)) == 2, "one was left behind, the other is being worked on"
    busy.terminate()
    busy.communicate(timeout=PATIENCE_S)
    assert os.listdir(ext.installed) == ["next"]


def hanging_beside(ext: Ext, env: dict[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """Start another one that hangs, while one does."""
    process = ext.start("ext", "install", "https://localhost/y", env=env)
    assert eventually(lambda: len([*ext.installed.glob(".*/*/pid")]) == 2)
    return process, process.pid


def test_a_switch_changes_one_word_of_the_file(ext: Ext) -> None:
    path = put(ext.installed, "one") / "extension.json"
    for before, disabled, enabled in [
        (
            '{\n\t"name": "one",\r\n\t"exec": "x"\r\n}\n',
            '{\n\t"name": "one",\r\n\t"exec": "x",\r\n\t"enabled": false\r\n}\n',
            '{\n\t"name": "one",\r\n\t"exec": "x",\r\n\t"enabled": true\r\n}\n',
        ),
        (
            '\ufeff{"enabled" : true, "name":"one" ,"exec":"\\u0078é", "x": {"enabled": 1}}',
            '\ufeff{"enabled" : false, "name":"one" ,"exec":"\\u0078é", "x": {"enabled": 1}}',
            '\ufeff{"enabled" : true, "name":"one" ,"exec":"\\u0078é", "x": {"enabled": 1}}',
        ),
        (
            '{"name": "one", "enabled": false, "exec": "x", "enabled": true }',
            '{"name": "one", "enabled": false, "exec": "x", "enabled": false }',
            '{"name": "one", "enabled": false, "exec": "x", "enabled": true }',
        ),
    ]:
        path.write_bytes(before.encode())
        path.chmod(0o640)
        assert ext.ext("disable", "one") == ("disabled one\n", "", 0)
        assert path.read_bytes() == disabled.encode()
        assert ext.ext("enable", "one") == ("enabled one\n", "", 0)
        assert path.read_bytes() == enabled.encode()
    assert ext.ext("enable", str(path.parent)) == ("one is enabled already\n", "", 0)
    assert oct(path.stat().st_mode) == "0o100640"
    assert sorted(os.listdir(path.parent)) == ["extension.json", "run"]
    path.write_text("{")
    assert ext.ext("disable", "one") == ("", f"zot: {path}: is not JSON: it ends too early, at line 1, column 2\n", 1)


def test_a_project_extension_runs_once_trusted_and_not_after_a_change(ext: Ext) -> None:
    theirs = put(ext.local, "both")
    ours = put(ext.installed, "both")
    assert ext.standings() == [("both", "project", "untrusted"), ("both", "global", "runs")]
    instead = f"in its project it runs instead of the installed one in {ours}\n"
    covers = "  runs: ./run\n  covers: 2 files, 50 bytes; a private copy of them runs\n"
    data = "  data, kept by zot and not taken from the project: data/**, *.db, *.db-*, *.log\n"
    assert ext.ext("trust", "both") == (f"trusted {theirs}\n{covers}{data}{instead}", "", 0)
    assert ext.standings() == [("both", "project", "runs"), ("both", "global", "shadowed")]
    assert ext.ext("disable", f"{theirs}/").code == 0
    assert ext.ext("enable", "both") == (
        "", f"zot: several extensions are named 'both'; give the directory: {theirs} or {ours}\n", 1,
    )  # fmt: skip
    assert ext.ext("enable", str(theirs)).code == 0
    assert ext.standings()[0] == ("both", "project", "runs"), "its user may switch it and still trusts it"
    (theirs / "state.log").write_text("{}")
    assert ext.standings()[0] == ("both", "project", "runs"), "that is its data"
    (theirs / "run").write_text("#!/bin/sh\nid\n")
    assert ext.standings()[0] == ("both", "project", "untrusted")
    said = ext.ext("trust", str(theirs), "--json")
    told = json.loads(said.out)
    assert told.pop("covers")["data"] == ["state.log"]
    assert told == {
        "name": "both", "directory": str(theirs), "trusted": True, "changed": True, "shadows": str(ours),
        "runs": ["./run"],
    }  # fmt: skip
    assert ext.ext("untrust", "both") == (f"no longer trusted: {theirs}\n", "", 0)
    assert ext.ext("untrust", "both") == ("", "zot: both was not trusted\n", 1)
    assert ext.ext("remove", "-y", str(theirs)).code == 0
    enough = "both is installed and needs no trust; only extensions of a project do"
    assert ext.ext("trust", "both") == ("", f"zot: {enough}\n", 1)
    assert ext.ext("trust", "none") == ("", "zot: no extension is named 'none'; known: none\n", 1)
    assert ext.ext("remove", "bohts").err.endswith("; did you mean both?\n")


def test_a_log_is_read_and_followed_into_the_next_file(ext: Ext) -> None:
    path = ext.home / "logs" / "ext-one.log"
    none = "zot: no extension is named 'one'; known: none\n"
    assert ext.ext("logs", "one") == ("", none, 1)
    put(ext.installed, "one")
    assert ext.ext("logs", "one") == ("", f"zot: no log of one exists at {path}: it has not run yet\n", 1)
    process = ext.start("ext", "logs", "-f", "one")
    try:
        path.parent.mkdir()
        path.write_text("[zot] 2026-01-02T03:04:05.678Z starting one\noops ")
        assert followed(process, b"one\noops ")
        with path.open("a") as log:
            path.replace(f"{path}.1")
            log.write("last\n")
        path.write_text("new\n")
        assert followed(process, b"last\nnew\n")
        path.write_text("")
        path.write_text("n")
        assert followed(process, b"n")
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=PATIENCE_S), process.returncode) == ((b"", b""), 0)
    finally:
        process.kill()
        process.wait()
    path.write_bytes(b"[zot] 2026-01-02T03:04:05.678Z starting one\n\xff\n")
    assert ext.ext("logs", "one").out == "[zot] 2026-01-02T03:04:05.678Z starting one\n\udcff\n"
    out = ext.ext("logs", "one", "--json").out
    assert [json.loads(line) for line in out.split("\n")[:-1]] == [
        {"at": "2026-01-02T03:04:05.678Z", "zot": "starting one"}, {"extension": "\ufffd"},
    ]  # fmt: skip


def followed(process: subprocess.Popen[bytes], end: bytes) -> bool:
    """Wait until its output contains ``end``; True if it does."""
    assert process.stdout is not None
    said, deadline = b"", time.monotonic() + PATIENCE_S
    while not said.endswith(end):
        said += read_some(process.stdout.fileno(), deadline)
    return True


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            "",
            "zot ext needs a subcommand: list, install, remove, enable, disable, logs, trust, untrust, new, test, run",
        ),
        (
            "frob",
            "zot ext has no subcommand 'frob'; known: list, install, remove, enable, disable, logs, trust, untrust, "
            "new, test, run",
        ),
        ("list more", "zot ext list takes no words"),
        ("install", "zot ext install takes PATH|GIT-URL"),
        ("logs x --nothing", "unknown flag --nothing; --help-all lists every flag"),
    ],
)
def test_wrong_usage_is_explained(ext: Ext, words: str, why: str) -> None:
    command = " ".join(["zot ext", *words.split()[:1]]).removesuffix(" frob")
    assert ext.ext(*words.split()) == ("", f"zot: {why}. Try: {command} --help\n", 2)
