"""A page followed as its reader does: files saved, commands typed into one shell, their output compared."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

from harness import PATIENCE_S, environment

from .markdown import Block, all_blocks

ROOT = Path(__file__).parents[2]
#: A block of which the first line is a comment with nothing but a file name is to be saved under that name.
_FILE = re.compile(r"(?:#|//) ([\w./-]+\.\w+)\n")
#: A notice that only a busy machine shows.
_SLOW = re.compile(r"^.*waiting for extension .* \(--ext-deadline .*\n?", re.MULTILINE)
_MARK = "walkthrough-end-of-output"


class Typed(NamedTuple):
    """A command as the page shows it, and the output shown below it."""

    command: str
    shown: str
    line: int


class Reader:
    """A shell in an empty home directory, beside a copy of the examples, with zot on the PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        home = directory / "home"
        home.mkdir()
        shutil.copytree(ROOT / "examples", directory / "examples")
        path = f"{Path(sys.executable).parent}:{environment({})['PATH']}"
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=directory,
            env=environment({"HOME": str(home), "PATH": path, "GOFLAGS": "-mod=mod", "GOPROXY": "off"}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._unread = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def save(self, name: str, text: str) -> None:
        """Save a file in the directory where the shell is."""
        output, _ = self.type("pwd")
        (Path(output.strip()) / name).write_text(text)

    def type(self, command: str) -> tuple[str, int]:
        """Run a command; return its output, standard error included, and its exit code."""
        assert self._shell.stdin is not None
        end = f"status=$?; printf '\\n{_MARK} %d\\n' $status; (exit $status)\n"
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null\n{end}".encode())
        self._shell.stdin.flush()
        output, _, rest = self._until(_MARK).partition(f"\n{_MARK} ")
        code, _, self._unread = rest.partition("\n")
        return output, int(code)

    def _until(self, mark: str) -> str:
        assert self._shell.stdout is not None
        deadline = time.monotonic() + 4 * PATIENCE_S
        while not re.search(rf"\n{mark} \d+\n", self._unread):
            ready, _, _ = select.select([self._shell.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"it takes too long, with the output {self._unread!r}"
            data = os.read(self._shell.stdout.fileno(), 1 << 16)
            assert data, f"the shell ended, with the output {self._unread!r}"
            self._unread += data.decode(errors="replace")
        return self._unread


def typed(block: Block) -> list[Typed]:
    """Return the commands of a console block. After a backslash, a command continues in lines that begin with ``>``."""
    found: list[Typed] = []
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            found.append(Typed(line[2:], "", number))
        elif line.startswith("> ") and not found[-1].shown and found[-1].command.endswith("\\"):
            found[-1] = found[-1]._replace(command=f"{found[-1].command}\n{line[2:]}")
        else:
            found[-1] = found[-1]._replace(shown=f"{found[-1].shown}{line}\n")
    return found


def file_name(block: Block) -> str | None:
    """Return the name under which the page tells its reader to save a block, if it does."""
    named = _FILE.match(block.text)
    return named[1] if named else None


def follow(page: Path, reader: Reader) -> None:
    """Save and type everything that a page shows, in its order; ``...`` matches any output."""
    for block in all_blocks(page.read_text()):
        name = file_name(block)
        if name is not None:
            reader.save(name, block.text)
        elif block.language == "console":
            steps = typed(block)
            for step, following in zip(steps, [*steps[1:], None], strict=True):
                output, code = reader.type(step.command)
                output = _SLOW.sub("", output)
                pattern = ".*".join(map(re.escape, step.shown.strip().split("...")))
                where = f"{page.name}, line {step.line}: {step.command}\nshown:\n{step.shown}\nprinted:\n{output}"
                assert re.fullmatch(pattern, output.strip(), re.DOTALL), where
                expected = following is not None and following.command == "echo $?"
                assert code == 0 or expected, f"exit code {code}: {where}"
