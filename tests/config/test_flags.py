"""Flags: parsing of command lines, and errors."""

from __future__ import annotations

from typing import Any

import pytest

from zot.config.config import STORE_FLAG
from zot.config.flags import Flag, Manual, choice, dollars, parse, positive
from zot.errors import ConfigError, UsageError

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
        (["--nonsense"], "unknown flag --nonsense; --help-all lists every flag"),
        (["--nonsense=1"], "unknown flag --nonsense; --help-all lists every flag"),
        (["-x"], "unknown flag -x; --help-all lists every flag"),
        (["--modle", "x"], "unknown flag --modle; did you mean --model?"),
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


MANUAL = Manual(
    "zot x WORD",
    "Do x.",
    (
        Flag("--model", "Use this model.", value="ID", short="-m", group="Model"),
        Flag("--append", "Add text.", value="TEXT", many=True),
        Flag("--rarely", "Do what few people need, " + "at length " * 8 + "here.", group="Model", advanced=True),
        Flag("--with-a-very-long-name", "Explain it.", value="SOMETHING-LONG"),
    ),
    (Flag("--foreign", "accepted only"),),
    (("zot x 1", "Do it once."),),
    {0: "Done.", 2: "Wrong usage."},
)


def test_help_shows_common_flags_by_group_with_examples_and_exit_codes() -> None:
    assert (
        MANUAL.text()
        == """\
Usage: zot x WORD [flags]

Do x.

Model:
  -m, --model ID                  Use this model.

Flags:
  --append TEXT                   Add text. Repeatable.
  --with-a-very-long-name SOMETHING-LONG
                                  Explain it.

Help:
  -h, --help                      Show the common flags and examples.
  --help-all                      Show every flag.

1 more flag: zot x --help-all

Examples:
  zot x 1
      Do it once.

Exit codes:
  0    Done.
  2    Wrong usage."""
    )


def test_all_of_the_help_has_every_flag_but_accepted_foreign_ones() -> None:
    text = MANUAL.text(everything=True)
    assert "  --rarely" in text
    assert " more flag" not in text
    assert "--foreign" not in text


def test_an_error_names_an_address_without_its_password() -> None:
    with pytest.raises(UsageError, match=r"^--store mysql://host/db: must be") as problem:
        parse(["--store", "mysql://me:p@ss@host/db"], [STORE_FLAG])
    assert "p@ss" not in str(problem.value)
