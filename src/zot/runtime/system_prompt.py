"""What the model is told before anything else: zot's words or the user's own, instructions, skills, a schema."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from zot.config.config import Config, zot_home
from zot.errors import ConfigError

if TYPE_CHECKING:
    from zot.agent.expected import Expected
    from zot.runtime.toolbox import Toolbox


def system_of(config: Config, toolbox: Toolbox, *, cwd: str, date: str, expected: Expected | None) -> str:
    """Return the system prompt of a session that works in ``cwd`` with these tools. Raise ConfigError."""
    from zot.config.instructions import discover
    from zot.runtime.prompt import system_prompt

    home = zot_home(config.environment)
    found = () if config.no_instructions else discover(cwd=cwd, home=home)
    return system_prompt(
        cwd=cwd,
        date=date,
        tools=[tool.spec.name for tool in toolbox.tools],
        replaced_by=_own_words(home) if config.system_prompt is None else config.system_prompt,
        instructions=[(item.path, item.text) for item in found],
        appended=(
            *config.append_system_prompt,
            toolbox.manifest,
            expected.instruction if expected is not None else "",
        ),
    )


def _own_words(home: str | None) -> str | None:
    """Return what the user wrote to take the place of our words; None if there is no such file."""
    if home is None:
        return None
    from zot.files import content

    path = os.path.join(home, "SYSTEM.md")
    try:
        return content(path).decode("utf-8-sig").strip()
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
