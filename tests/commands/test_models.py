"""`zot models`: a table for people, lines for programs, and the provider's own word on demand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import forked
from harness import environment, serving
from zot.config.vendors import VENDORS
from zot.providers.lab.script import demo
from zot.providers.models import catalogue


def zot(*words: str, **env: str) -> tuple[int, str, str]:
    done = forked.run(["models", *words], env=environment(env))
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_table_shows_everything_and_cuts_nothing() -> None:
    code, output, errors = zot("--provider", "gemini")
    assert (code, errors) == (0, "")
    head, *rows = output.splitlines()
    assert " ".join(head.split()) == "PROVIDER MODEL CONTEXT OUTPUT REASONING $IN $OUT $CACHE READ $CACHE WRITE AS OF"
    as_of = catalogue("gemini").models[0].as_of
    assert rows[1].split() == ["gemini", "gemini-2.5-pro", "1048576", "65536", "yes", "1.25", "10", "0.125", "-", as_of]
    assert rows[2].split() == ["above", "200000", "tokens", "2.5", "15", "0.25", "-"]
    assert [row.split()[1] for row in rows if row.startswith("gemini")] == [
        model.id for model in catalogue("gemini").models
    ]
    assert rows[-1] == "US dollars per million tokens; ? means unknown, - costs as much as input."


def test_a_price_that_is_not_known_is_shown_so() -> None:
    _, output, _ = zot("--provider", "kimi")
    assert output.splitlines()[1].split()[5:9] == ["?"] * 4


def test_programs_get_one_object_per_line_for_every_provider() -> None:
    code, output, errors = zot("--json")
    assert (code, errors) == (0, "")
    found = lines(output)
    known = [(name, model.id) for name in VENDORS if name != "lab" for model in catalogue(name).models]
    assert [(line["provider"], line["id"]) for line in found] == known
    assert found[0] == {
        "provider": "anthropic",
        "id": "claude-sonnet-5-5",
        "name": "Claude Sonnet 5.5",
        "context_window": 1000000,
        "max_output": 64000,
        "reasoning": True,
        "price": {"input": 2.0, "output": 10.0, "cache_read": 0.1, "cache_write": 2.5},
        "base_url": None,
        "as_of": catalogue("anthropic").models[0].as_of,
        "listed": None,
    }


def test_the_users_models_are_there_too(tmp_path: Path) -> None:
    own = {"id": "mine", "priceInput": 1, "priceOutput": 2, "baseUrl": "http://localhost:1"}
    (tmp_path / "models.json").write_text(json.dumps({"providers": {"ollama": {"models": [own]}}}))
    code, output, errors = zot("--provider", "ollama", "--json", ZOT_HOME=str(tmp_path))
    assert (code, errors) == (0, "")
    assert lines(output) == [
        {
            "provider": "ollama", "id": "mine", "name": "mine", "context_window": 32768, "max_output": 8192,
            "reasoning": True, "price": {"input": 1.0, "output": 2.0}, "base_url": "http://localhost:1", "as_of": None,
            "listed": None,
        }
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["", "/v1"])
def test_a_service_is_asked_for_its_own_list(path: str) -> None:
    with serving(demo()) as url:
        key = {"ANTHROPIC_API_KEY": "k"}
        code, output, errors = zot("--provider", "anthropic", "--live", "--json", "--base-url", url + path, **key)
    assert (code, errors) == (0, "")
    assert [line["id"] for line in lines(output) if line["listed"]] == ["lab-1"]
    assert len(lines(output)) == len(catalogue("anthropic").models) + 1


def test_models_listed_by_the_service_are_marked_in_the_table() -> None:
    code, output, _ = zot("--provider", "lab", "--live")
    assert code == 0
    assert output.splitlines()[0].endswith("LISTED")
    assert output.splitlines()[1].endswith("yes")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--live"], "--live needs a provider: zot models --live --provider NAME"),
        (["--provider", "anthropic", "--live"], "no key for anthropic: set ANTHROPIC_API_KEY, "),
        (["--provider", "acme"], "--provider acme: unknown provider 'acme'; known: "),
        (["gpt-5"], "zot models takes no words, only flags: 'gpt-5'"),
        (["--provider", "ollama", "--live", "--base-url", "http://127.0.0.1:1"], "ollama: "),
    ],
)
def test_errors_are_one_line(words: list[str], problem: str) -> None:
    code, output, errors = zot(*words)
    assert (code, output) == (2 if words in (["--live"], ["gpt-5"], ["--provider", "acme"]) else 1, "")
    assert errors.startswith(f"zot: {problem}")
    assert errors.count("\n") == 1
