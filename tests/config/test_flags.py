"""Flags: what a command line says, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from zot.config.flags import Flag, choice, dollars, parse, positive, usage
from zot.errors import ConfigError

FLAGS = (
    Flag("--model", "the model", value="ID", short="-m"),
    Flag("--max-steps", "how many", value="N", parse=positive),
    Flag("--level", "how much", value="LEVEL", parse=choice("low", "high")),
    Flag("--cost", "what it may cost", value="USD", parse=dollars),
    Flag("--append", "more", value="TEXT", many=True),
    Flag("--no-tools", "none"),
    Flag("--again", "one, or the newest", value="[ID]", short="-a"),
    Flag("--no-utensils", "the same", setting="no_tools"),
)


@pytest.mark.parametrize(
    ("argv", "settings", "words"),
    [
        ([], {}, []),
        (["--model", "a"], {"model": "a"}, []),
        (["--model=a"], {"model": "a"}, []),
        (["-m", "a"], {"model": "a"}, []),
        (["-m=a"], {"model": "a"}, []),
        (["--model", "a", "--model", "b"], {"model": "b"}, []),
        (["--model", "--no-tools"], {"model": "--no-tools"}, []),
        (["--model="], {"model": ""}, []),
        (["--model=a=b"], {"model": "a=b"}, []),
        (["--append", "a", "--append=b"], {"append": ("a", "b")}, []),
        (["--no-tools"], {"no_tools": True}, []),
        (["--again"], {"again": ""}, []),
        (["-a", "--no-tools"], {"again": "", "no_tools": True}, []),
        (["-a", "-"], {"again": ""}, ["-"]),
        (["-a", "x", "y"], {"again": "x"}, ["y"]),
        (["--again=", "y"], {"again": ""}, ["y"]),
        (["--again=-x"], {"again": "-x"}, []),
        (["--no-utensils"], {"no_tools": True}, []),
        (["--max-steps", "7", "--level", "low"], {"max_steps": 7, "level": "low"}, []),
        (["--cost", "0.5"], {"cost": 0.5}, []),
        (["one", "--no-tools", "two", "-"], {"no_tools": True}, ["one", "two", "-"]),
        (["one", "--", "--no-tools", "--", "-x"], {}, ["one", "--no-tools", "--", "-x"]),
    ],
)
def test_a_command_line_is_understood(argv: list[str], settings: dict[str, Any], words: list[str]) -> None:
    assert parse(argv, FLAGS) == (settings, words)


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--nonsense"], "unknown flag '--nonsense'; --help lists the known ones"),
        (["--nonsense=1"], "unknown flag '--nonsense'; --help lists the known ones"),
        (["-x"], "unknown flag '-x'; --help lists the known ones"),
        (["--no-tools=yes"], "--no-tools takes no value"),
        (["--model"], "--model needs a value: --model ID"),
        (["-m"], "-m needs a value: -m ID"),
        (["--max-steps", "0"], "--max-steps 0: must be at least 1"),
        (["--max-steps=-3"], "--max-steps -3: must be at least 1"),
        (["--max-steps", "many"], "--max-steps many: must be a whole number"),
        (["--max-steps", "1.5"], "--max-steps 1.5: must be a whole number"),
        (["--level", "medium"], "--level medium: must be one of low, high"),
        (["--cost", "$5"], "--cost $5: must be an amount of US dollars, such as 0.50"),
        (["--cost", "0"], "--cost 0: must be above 0 and at most 1000000000"),
        (["--cost", "nan"], "--cost nan: must be above 0 and at most 1000000000"),
        (["--cost", "inf"], "--cost inf: must be above 0 and at most 1000000000"),
    ],
)
def test_a_wrong_flag_says_what_is_wrong(argv: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(argv, FLAGS)
    assert str(caught.value) == problem


def test_help_lists_every_flag() -> None:
    assert usage("zot x", "Does x.", FLAGS) == (
        "usage: zot x [flags]\n"
        "\n"
        "Does x.\n"
        "\n"
        "flags:\n"
        "  -m, --model ID                   the model\n"
        "  --max-steps N                    how many\n"
        "  --level LEVEL                    how much\n"
        "  --cost USD                       what it may cost\n"
        "  --append TEXT                    more (repeatable)\n"
        "  --no-tools                       none\n"
        "  -a, --again [ID]                 one, or the newest\n"
        "  --no-utensils                    the same"
    )
