"""Approver of a session: the user's policy, and the stricter default where strangers prompt."""

from __future__ import annotations

import logging
import os
from functools import cache, partial
from typing import TYPE_CHECKING

import msgspec

from zot.agent.approvals import Approvals, Denials
from zot.config.config import TOOL_NAMES, Config, data_directory, zot_home
from zot.config.policy import Policy, Private
from zot.runtime.services import masked

if TYPE_CHECKING:
    from zot.runtime.open import OpenRequest

log = logging.getLogger("zot")

#: The default policy of an agent that strangers can prompt, and the advice in its denials.
_HOST_POLICY = ("read=allow", "skill=allow", "*=deny")
_HOST_ADVICE = "the operator of zot can allow more with --policy, such as --policy '*=allow', or in config.toml"


def guarded(config: Config) -> Config:
    """Return ``config`` for an agent that strangers can prompt."""
    return msgspec.structs.replace(config, policy=(*config.policy, *_HOST_POLICY))


def approvals_of(request: OpenRequest, *, cwd: str, key: str) -> Approvals:
    """Return the approver of tool calls. Guarded sessions reach no private file; those of a host never ask."""
    config, policy = request.config, _policy(request.config)
    if request.guarded:
        policy = msgspec.structs.replace(policy, private=cache(partial(_private, config, cwd, key)))
    if request.host_request is None:
        return Approvals(policy, cwd=cwd, timeout_s=config.approval_timeout_s)

    denials = Denials(request.host_request.name, advice=_HOST_ADVICE, mask=partial(masked, config))
    return Approvals(policy, cwd=cwd, denials=denials)


def _private(config: Config, cwd: str, key: str) -> Private:
    """Return the paths that strangers never reach: zot's own, except skills and spilled output,
    and the kernel's."""
    from zot.config.private_paths import KERNEL, private_paths  # Imported lazily: only a call with a path needs it.

    home, kept = zot_home(config.environment), data_directory(config)
    skills = () if home is None else (os.path.join(home, "skills"),)
    spilled = () if kept is None else (os.path.join(kept, "spill", key),)
    # A working directory in shared memory is the operator's choice.
    kernel = [place for place in KERNEL if not os.path.realpath(cwd).startswith(f"{place}/")]
    return Private((*(one.path for one in private_paths(config, cwd)), *kernel), (*skills, *spilled))


def _policy(config: Config) -> Policy:
    """Return the policy, with a warning for each rule about an unknown tool: it may be a typing mistake."""
    policy = Policy.parse(config.policy)
    for rule in policy.rules:
        if rule.tool not in ("*", *TOOL_NAMES):
            log.warning("policy: no tool of zot is named %r; its own are %s", rule.tool, ", ".join(TOOL_NAMES))
    return policy
