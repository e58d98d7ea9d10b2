"""`zot ext test`: an extension talked to as a session would, and what it does wrong."""

from __future__ import annotations

import asyncio
import sys

from zot.commands.ext_bench import bench_of, on_signal
from zot.commands.subcommands import Request, write, write_json
from zot.config.config import TOOL_NAMES
from zot.errors import UserError
from zot.extensions.authoring import Finding, Trial


def test(request: Request) -> int:
    """Try an extension; say what was seen, a line each."""
    return asyncio.run(_test(request))


async def _test(request: Request) -> int:
    def tell(finding: Finding) -> None:
        if request.json:
            write_json(finding)
        else:
            write(f"{finding.verdict:<5}  {finding.text}\n")
        sys.stdout.flush()

    trial = Trial(tell, taken=TOOL_NAMES)
    testing = asyncio.current_task()
    assert testing is not None
    on_signal(testing.cancel)
    try:
        async with bench_of(request, trial.heard) as bench:
            await trial.run(bench, call_tools=bool(request.settings.get("call_tools")))
    except asyncio.CancelledError:
        raise UserError("interrupted") from None
    if trial.failures:
        counted = "one thing" if trial.failures == 1 else f"{trial.failures} things"
        raise UserError(f"{bench.manifest.name} does {counted} wrong")
    return 0
