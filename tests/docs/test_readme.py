"""Every line that the README shows works as written, or is in a list with the reason why no test types it."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from .markdown import all_blocks, blocks
from .walkthrough import ROOT, Reader

TEXT = (ROOT / "README.md").read_text()
LINES = [line for block in blocks(TEXT, "sh") for line in block.text.splitlines()]
#: Lines that need a key, a network or an installation, or are run by other tests.
ELSEWHERE = {
    "make demo": "tests/examples runs it",
    "make test": "it is this run",
    "pipx install .": "tests/test_package.py installs the wheel",
    "pip install '.[tui]'": "tests/test_package.py installs the wheel with each extra",
    "pipx install zot-agent": "not published yet",
    "zot login anthropic": "needs a key",
    'zot -p "What does this project do?"': "needs a key",
    'git diff | zot -p "Review this"': "needs a key",
}
#: The other lines, in order, typed into one shell, and how their output ends.
ENDS = {
    'zot -p "show me" --provider lab': "see what else I can do.",
    'echo \'{"id"': '{"type":"done"}',
    'echo \'{"request_id"': '"total_tokens":120}}',
    "zot ext new greet && zot ext test greet": "acknowledged the shutdown and exited",
    'zot -p "/greet Ada"': "see what else I can do.",
    "zot daemon --provider lab &": "",
    "echo '!echo Hello' | zot attach": "> !echo Hello\nHello",
    "zot daemon stop": "has ended",
}


def command(line: str) -> str:
    """Return a line without the comment after it."""
    return re.sub(r"\s{2,}#.*", "", line)


def test_every_line_is_run_or_has_a_reason_not_to_be() -> None:
    for line in LINES:
        assert command(line) in ELSEWHERE or any(line.startswith(beginning) for beginning in ENDS), line
    assert {command(line) for line in LINES} >= ELSEWHERE.keys()
    assert [block.language for block in all_blocks(TEXT) if block.language not in ("sh", "python")] == []


def test_the_lines_for_the_shell_work_one_after_the_other() -> None:
    with tempfile.TemporaryDirectory() as directory, Reader(Path(directory)) as reader:
        typed = [line for line in LINES if command(line) not in ELSEWHERE]
        for line, (beginning, end) in zip(typed, ENDS.items(), strict=True):
            assert line.startswith(beginning)
            output, code = reader.type(line)
            assert (code, output.strip().endswith(end)) == (0, True), f"{line}\n{output}"


def test_the_program_works() -> None:
    (program,) = blocks(TEXT, "python")
    with tempfile.TemporaryDirectory() as directory, Reader(Path(directory)) as reader:
        reader.save("program.py", program.text)
        output, code = reader.type("python -W error program.py")
    said = output.splitlines()
    assert (code, '"type":"user_message"' in said[0], said[-1]) == (0, True, '{"type":"done"}')


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) < 150


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs", "examples"])
def test_no_line_installs_a_stranger_s_package(page: str) -> None:
    files = sorted((ROOT / page).rglob("*.md")) if (ROOT / page).is_dir() else [ROOT / page]
    for file in files:
        assert not re.search(r"(?:pipx?|uv tool|uv pip) install (?:-\S+ )*'?zot(?!-agent)\b", file.read_text()), file


def test_the_changelog_is_short_and_merged() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert len(text.split("\n")) <= 45
    assert not re.search("^(<{7}|={7}|>{7})", text, re.MULTILINE)
