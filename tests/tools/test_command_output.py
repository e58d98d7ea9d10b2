"""Output of commands: decoded, cut and streamed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from zot.tools.command_output import Spill, Spills
from zot.tools.text_encoding import Utf8

from .shells import Shell

Spilling: TypeAlias = Callable[[Path], Spills]


@pytest.fixture
def spilling() -> Iterator[Spilling]:
    """Make the place for the spill files of a session, as often as a test likes."""
    made: list[Spills] = []

    def make(root: Path) -> Spills:
        made.append(Spills(str(root), "s"))
        return made[-1]

    yield make
    for spills in made:
        spills.close()


async def test_output_is_shown_while_the_command_still_runs(kept: Shell, tmp_path: Path) -> None:
    # The command continues only when its first line has been read.
    async def progress(text: str) -> None:
        heard.append(text)
        (tmp_path / "heard").touch()

    heard: list[str] = []
    command = "echo one; until test -e heard; do sleep 0.01; done; echo two"
    text = await kept.heard_by(progress).run(command)
    assert text == f"$ {command}\n\none\ntwo\n\n[exit 0]  Took T"
    assert heard == ["one\n", "two\n"]


async def test_many_small_pieces_are_shown_together_and_none_is_lost(kept: Shell, heard: list[str]) -> None:
    await kept.run("for i in $(seq 2000); do echo $i; done")
    assert "".join(heard) == "".join(f"{n}\n" for n in range(1, 2001))
    assert len(heard) < 20


async def test_gathered_output_is_shown_though_the_command_writes_no_more(kept: Shell, tmp_path: Path) -> None:
    async def progress(text: str) -> None:
        heard.append(text)
        if "three\n" in "".join(heard):
            (tmp_path / "heard").touch()

    heard: list[str] = []
    # The second and third line come too soon after the first to be shown at once.
    command = "echo one; sleep 0.01; echo two; echo three; until test -e heard; do sleep 0.01; done"
    await kept.heard_by(progress).run(command)
    assert "".join(heard) == "one\ntwo\nthree\n"


async def test_a_character_cut_in_two_by_a_pause_is_shown_whole(kept: Shell, heard: list[str]) -> None:
    command = r"printf 'a\303'; sleep 0.1; printf '\251z'"
    assert await kept.run(command) == f"$ {command}\n\naéz\n\n[exit 0]  Took T"
    assert heard == ["a", "éz"]


async def test_bytes_that_are_not_utf8_are_replaced_and_the_text_says_so(kept: Shell, heard: list[str]) -> None:
    command = r"printf '\377ok\303'"
    flag = "[not all of it is UTF-8: \ufffd stands for what is not]"
    assert await kept.run(command) == f"$ {command}\n\n\ufffdok\ufffd\n{flag}\n\n[exit 0]  Took T"
    assert "".join(heard) == "\ufffdok\ufffd"


async def test_a_replacement_character_that_the_command_wrote_itself_is_not_flagged(kept: Shell) -> None:
    command = r"printf '\357\277\275'"
    assert await kept.run(command) == f"$ {command}\n\n\ufffd\n\n[exit 0]  Took T"


@pytest.mark.parametrize(
    ("data", "text", "is_valid"),
    [
        ("aé€😀z".encode(), "aé€😀z", True),
        (b"\xef\xbf\xbd", "\ufffd", True),
        (b"a\xff\xc3\xa9", "a\ufffdé", False),
        (b"a\xe2\x82", "a\ufffd", False),
        (b"\xe2\x82a\xf0\x9f\x98\x80", "\ufffda😀", False),
    ],
)
def test_text_is_the_same_whole_and_byte_by_byte(data: bytes, text: str, is_valid: bool) -> None:
    whole, bytewise = Utf8(), Utf8()
    assert whole.decode(data, final=True) == text
    assert "".join(bytewise.decode(bytes([byte])) for byte in data) + bytewise.decode(b"", final=True) == text
    assert (whole.is_valid, bytewise.is_valid) == (is_valid, is_valid)


async def test_of_many_lines_the_first_and_last_are_kept(kept: Shell, heard: list[str]) -> None:
    text = await kept.run("seq 1 100000")
    numbers = [f"{n}\n" for n in range(1, 100001)]
    left = numbers[1000:-1000]
    note = f"[... {sum(map(len, left))} bytes, {len(left)} lines left out ...]\n"
    output = "".join(numbers[:1000]) + note + "".join(numbers[-1000:])
    assert text == f"$ seq 1 100000\n\n{output}\n[exit 0]  Took T"
    assert "".join(heard) == "".join(numbers)


async def test_of_many_bytes_the_first_and_last_whole_lines_are_kept(kept: Shell) -> None:
    lines = [f"{n:097}\n" for n in range(1, 1001)]
    whole = 25600 // 98
    note = f"[... {98 * (1000 - 2 * whole)} bytes, {1000 - 2 * whole} lines left out ...]\n"
    output = "".join(lines[:whole]) + note + "".join(lines[-whole:])
    assert await kept.run("seq -f %097.0f 1000") == f"$ seq -f %097.0f 1000\n\n{output}\n[exit 0]  Took T"


async def test_of_one_endless_line_the_beginning_and_end_are_kept(kept: Shell) -> None:
    command = "head -c 100000 /dev/zero | tr '\\0' a; echo; printf 'é%.0s' $(seq 30000)"
    text = await kept.run(command)
    output = "a" * 25600 + "\n[... 108801 bytes, 1 lines left out ...]\n" + "é" * 12800
    assert text == f"$ {command}\n\n{output}\n\n[exit 0]  Took T"


async def test_omitted_output_is_in_a_private_file_that_the_text_names(
    kept: Shell, spilling: Spilling, tmp_path: Path
) -> None:
    spills = tmp_path / "home" / "spill"
    text = await kept.run("seq 1 3000; printf end", kept.tool(spills=spilling(spills)))
    [spill] = (spills / "s").iterdir()
    assert f"lines left out; the complete output is in {spill} ...]\n" in text
    assert spill.read_text() == "".join(f"{n}\n" for n in range(1, 3001)) + "end"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (spill, spill.parent)]
    assert modes == [0o600, 0o700]


@pytest.mark.parametrize("command", ["seq 1 2000", "head -c 51200 /dev/zero | tr '\\0' a"])
async def test_output_that_fits_makes_no_file(command: str, kept: Shell, spilling: Spilling, tmp_path: Path) -> None:
    assert "left out" not in await kept.run(command, kept.tool(spills=spilling(tmp_path / "spill")))
    assert not (tmp_path / "spill").exists()


async def test_a_disk_that_fills_up_ends_the_file_and_not_the_command(
    kept: Shell, spilling: Spilling, tmp_path: Path
) -> None:
    # No byte may be written beyond this by us; a command's own limit is given back to it.
    import resource
    import signal

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    await kept.run("true")  # the guardian keeps the old limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        text = await kept.run("seq 1 100000", kept.tool(spills=spilling(tmp_path / "spill")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    [spill] = (tmp_path / "spill" / "s").iterdir()
    assert spill.stat().st_size == 100_000
    assert f"lines left out; only the first 100000 bytes are in {spill}: File too large ...]\n" in text
    assert text.endswith("\n100000\n\n[exit 0]  Took T")


async def test_where_no_file_can_be_made_the_text_says_so(kept: Shell, spilling: Spilling, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    text = await kept.run("seq 1 3000", kept.tool(spills=spilling(tmp_path / "file")))
    assert "lines left out; the rest could not be kept: Not a directory ...]\n" in text


def test_a_spill_ends_at_its_limit(tmp_path: Path) -> None:
    spill = Spill(str(tmp_path / "spill"), max_bytes=10)
    spill.write(b"12345678")
    assert spill.note() == f"the complete output is in {spill.path}"
    spill.write(b"90ab")
    spill.write(b"cdef")
    spill.close()
    assert Path(spill.path).read_bytes() == b"1234567890"
    assert spill.note() == f"only the first 10 bytes are in {spill.path}: the limit of a spill file"


def test_two_hundred_megabytes_of_output_do_not_grow_memory(tmp_path: Path) -> None:
    program = r"""if True:
        import asyncio, re, sys
        from zot.tools.base import CallReporter, ToolContext
        from zot.tools.bash import Bash
        from zot.tools.guardian import Guardian
        from zot.tools.command_output import Spills
        heard = 0
        class Counter(CallReporter):
            async def progress(self, text):
                global heard
                heard += len(text)
        async def main():
            guardian = Guardian()
            context = ToolContext(cwd=sys.argv[1], env={"PATH": sys.argv[2]}, reporter=Counter())
            bash = Bash(guardian, spills=Spills(sys.argv[1], "s"))
            [block] = await bash.run({"command": "yes | head -c 200000000"}, context)
            await guardian.close()
            return block.text
        text = asyncio.run(main())
        print(heard, len(text) < 60_000, re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), os.environ["PATH"]],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    said, is_short, peak_kib = done.stdout.split()
    assert (said, is_short) == ("200000000", "True")
    assert int(peak_kib) < 60 * 1024
    [spill] = (tmp_path / "s").iterdir()
    assert spill.stat().st_size == 200_000_000
