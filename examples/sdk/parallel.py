"""Several runtimes in one process: each has its own conversation and directory, and they do not disturb each other.

python parallel.py
"""

import asyncio
import tempfile
from pathlib import Path

import zot


async def count_words(directory: Path) -> str:
    """Let an agent of its own work in ``directory``."""
    async with zot.Runtime(provider="lab", cwd=str(directory), tools=("bash",)) as runtime:
        await runtime.run("!bash wc -w < notes.txt > count.txt")
        return (directory / "count.txt").read_text().strip()


async def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        projects = {name: Path(root, name) for name in ("red", "green", "blue")}
        for number, directory in enumerate(projects.values(), start=1):
            directory.mkdir()
            (directory / "notes.txt").write_text("word " * number)
        counts = await asyncio.gather(*(count_words(directory) for directory in projects.values()))
    for name, count in zip(projects, counts, strict=True):
        print(f"{name}: {count}")


asyncio.run(main())
