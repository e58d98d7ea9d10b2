"""The run of the attacks without rights: it has none, runs the interpreter, and reports a machine that prevents it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from optional import needs

from .privilege import needs_no_rights, needs_root

_SCRIPT = str(Path(__file__).parent.parent.parent / "scripts" / "unprivileged.py")
#: Prints who this is, and what it may do and see.
_ASK = """
import os, sys
status = open("/proc/self/status").read().split()
print(os.getuid() == os.geteuid() > 60000, os.getgroups(), int(status[status.index("CapEff:") + 1], 16))
print(os.access(os.environ["HOME"], os.W_OK), os.access("/", os.W_OK), os.listdir(sys.argv[1] + "/../.."))
"""


def _run(*before: str, python: str = sys.executable, env: dict[str, str], ask: str = "pass") -> tuple[int, str]:
    command = [*before, python, _SCRIPT, python, "-c", ask, os.path.dirname(python)]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.partition("\n")[2]


@needs_no_rights
def test_the_run_without_rights_has_none() -> None:
    """No other test would show the protection of a user without them."""
    status = Path("/proc/self/status").read_text().splitlines()
    capabilities = {line for line in status if line.startswith(("CapPrm:", "CapEff:", "CapAmb:"))}
    assert {int(line.split()[1], 16) for line in capabilities} == {0}
    assert not os.access("/", os.W_OK)


@needs_root
def test_a_user_without_rights_gets_the_interpreter_out_of_a_closed_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "env" / "bin").mkdir(parents=True)
    python = home / "env" / "bin" / "python"
    python.symlink_to(os.path.realpath(sys.executable))
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", home / "env")
    (home / "secret").write_text("s3cret")
    for closed in (*tmp_path.parents[:2], tmp_path, home):
        closed.chmod(0o700)
    assert _run(python=str(python), env={}, ask=_ASK) == (0, "True [] 0\nTrue False ['env']\n")


@needs_root
@needs("bwrap")
def test_a_machine_that_allows_no_other_user_is_named_and_fails_in_ci() -> None:
    powerless = ("bwrap", "--dev-bind", "/", "/", "--cap-drop", "ALL", "--")
    status, text = _run(*powerless, env={"CI": ""})
    assert (status, text.startswith("not run as a user without rights: ")) == (0, True)
    status, text = _run(*powerless, env={"CI": "true"})
    assert (status, text.startswith("FAILED not run as a user without rights: ")) == (1, True)
