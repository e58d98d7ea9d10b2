"""`zot worker`: run the prompts of sessions in PostgreSQL."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from msgspec.structs import replace

from zot.config import flags
from zot.config.config import AGENT_FLAGS, FOREIGN_FLAGS, STORE_FLAG, ignore_foreign, zot_home
from zot.config.configured_agents import AgentConfigs
from zot.config.flags import Flag
from zot.config.paths import locate
from zot.errors import UsageError

_OWN_FLAGS = (
    Flag("--pool", "Run the prompts of this pool (default: default).", value="NAME", group="Worker"),
    Flag("--concurrency", "Run this many sessions at once (default: 16).", value="N", parse=flags.positive,
         group="Worker"),
)  # fmt: skip
#: Not flags of a worker: gateways choose session, directory and agent. Its help has --store first.
_NOT_SHARED = ("--session", "--no-session", "--cwd", "--agent", STORE_FLAG.name)
_CONCURRENCY = 16
MANUAL = flags.Manual(
    "zot worker",
    """\
Run the prompts of sessions that are in PostgreSQL. Clients talk to a gateway: zot daemon with the same --store.
On SIGTERM it finishes its runs; another worker continues those that wait for an approval.""",
    (
        replace(STORE_FLAG, advanced=False, group="Worker"),
        *_OWN_FLAGS,
        *(flag for flag in AGENT_FLAGS if flag.name not in _NOT_SHARED),
    ),
    FOREIGN_FLAGS,
    (("zot worker --store postgresql://zot@db/sessions", "Run prompts of the default pool."),),
    {0: "A signal ended it, and its runs have finished.", 1: "It could not start.", 2: "Wrong usage."},
)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (parsed := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = parsed
    if words:
        raise UsageError(f"zot worker takes no word after its flags: {words[0]!r}")
    ignore_foreign(settings)
    from zot.serve.worker import serve_worker  # Imported lazily: it needs the extra `fleet`.

    own = {flag.key for flag in _OWN_FLAGS}
    place = locate(os.environ, config_dir=settings.get("config_dir"))
    agents = AgentConfigs.load(place.config_dir or zot_home(os.environ))
    given = {name: value for name, value in settings.items() if name not in own and name != "config_dir"}
    return asyncio.run(
        serve_worker(
            place,
            agents,
            given,
            pool=settings.get("pool", "default"),
            concurrency=settings.get("concurrency", _CONCURRENCY),
        )
    )
