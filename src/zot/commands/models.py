"""`zot models`: list models with context windows and prices."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from zot.config import flags
from zot.config.config import AGENT_FLAGS, Config, resolve
from zot.config.vendors import VENDORS
from zot.errors import UsageError
from zot.providers.models import Model, Price, Rate
from zot.runtime.provider_choice import models_of

_TAKEN = ("--provider", "--api-key", "--base-url", "--api", "--config-dir")
MANUAL = flags.Manual(
    "zot models",
    "List the models of all providers, or of one: window, longest reply, prices.",
    (
        flags.Flag("--live", "Ask the provider which models it serves now; needs --provider."),
        flags.Flag("--json", "Print one JSON object per line."),
        *(flag for flag in AGENT_FLAGS if flag.name in _TAKEN),
    ),
    examples=(
        ("zot models --provider anthropic", "List the models of one provider."),
        ("zot models --live --provider ollama", "Ask a local server for its models."),
    ),
    exits={0: "Listed.", 1: "The service could not be asked.", 2: "Wrong usage."},
)

_HEAD = ("PROVIDER", "MODEL", "CONTEXT", "OUTPUT", "REASONING", "$IN", "$OUT", "$CACHE READ", "$CACHE WRITE", "AS OF")


class ModelLine(msgspec.Struct, frozen=True):
    """One model for programs. ``listed`` tells whether the service lists it; None if it was not asked."""

    provider: str
    id: str
    name: str
    context_window: int
    max_output: int
    reasoning: bool
    price: Price | None
    base_url: str | None
    as_of: str | None
    listed: bool | None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    if words:
        raise UsageError(f"zot models takes no words, only flags: {words[0]!r}")
    as_json, live = settings.pop("json", False), settings.pop("live", False)
    if live and "provider" not in settings:
        raise UsageError("--live needs a provider: zot models --live --provider NAME")
    found = _ask(resolve(settings)) if live else [(model, None) for model in _all(settings)]
    sys.stdout.write("".join(_json(found) if as_json else _table(found, live=live)))
    return 0


def _all(settings: dict[str, Any]) -> Iterator[Model]:
    names = [settings["provider"]] if "provider" in settings else [name for name in VENDORS if name != "lab"]
    for name in names:
        yield from models_of(resolve({**settings, "provider": name})).models


def _ask(config: Config) -> list[tuple[Model, bool | None]]:
    """Return the known and the served models, and whether the service lists them."""
    from zot.runtime.provider_assembly import served_models  # Imported lazily: only `--refresh` needs a connection.

    return [*served_models(config)]


def _json(found: Sequence[tuple[Model, bool | None]]) -> Iterator[str]:
    for model, listed in found:
        line = ModelLine(
            model.provider,
            model.id,
            model.name,
            model.context_window,
            model.max_output,
            model.reasoning,
            model.price,
            model.base_url or None,
            model.as_of or None,
            listed,
        )
        yield msgspec.json.encode(line).decode() + "\n"


def _table(found: Sequence[tuple[Model, bool | None]], *, live: bool) -> Iterator[str]:
    """Yield lines for people. Nothing is cut: a long id makes a wide column."""
    rows: list[tuple[str, ...]] = [(*_HEAD, "LISTED") if live else _HEAD]
    for model, listed in found:
        rows += _rows(model, ("yes" if listed else "no",) if live else ())
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n"
    yield "\nUS dollars per million tokens; ? means unknown, - costs as much as input.\n"


def _rows(model: Model, listed: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    shape = (f"{model.context_window}", f"{model.max_output}", "yes" if model.reasoning else "no")
    yield model.provider, model.id, *shape, *_dollars(model.price), model.as_of or "-", *listed
    for tier in model.price.tiers if model.price is not None else ():
        yield "", f"  above {tier.above} tokens", "", "", "", *_dollars(tier), "", *("" for _ in listed)


def _dollars(rate: Rate | None) -> tuple[str, ...]:
    if rate is None:
        return ("?",) * 4
    values = (rate.input, rate.output, rate.cache_read, rate.cache_write)
    return tuple("-" if value is None else f"{value:g}" for value in values)
