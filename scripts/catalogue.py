"""Write src/zot/providers/catalogue.json: which models there are, what they hold, and what they cost.

    python scripts/catalogue.py GENAI_PRICES.whl --as-of 2026-10-26

Prices, names and windows are those of the package genai-prices, given as a wheel or as the directory that it was
unpacked to. It is only read: nothing of it is run. `--as-of` is the day its data was last checked against the
vendors, and decides which of several dated prices holds. The same input gives the same file.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).parents[1] / "src" / "zot" / "providers" / "catalogue.json"


class First(NamedTuple):
    """A model that comes before the others of its provider; the very first is the default.

    Its price is used only where the data has none.
    """

    id: str
    context_window: int
    max_output: int
    reasoning: bool
    price: tuple[float, float, float] | None = None


class Family(NamedTuple):
    """Models that are taken from the data, by a pattern for their ids, and what the data does not say about them.

    Where the vendor names no longest reply, ``max_output`` is a cautious one.
    """

    pattern: str
    max_output: int
    reasoning: bool


class Vendor(NamedTuple):
    """Where a provider's models come from: its name in the data, those that come first, and which others follow."""

    source: str | None
    first: Sequence[First]
    families: Sequence[Family] = ()


_VENDORS: Mapping[str, Vendor] = {
    "anthropic": Vendor(
        "anthropic",
        [
            First("claude-sonnet-5-5", 1_000_000, 64_000, True),
            First("claude-sonnet-4-5", 200_000, 64_000, True),
            First("claude-opus-4-1", 200_000, 32_000, True),
            First("claude-opus-4-0", 200_000, 32_000, True),
            First("claude-sonnet-4-0", 200_000, 64_000, True),
            First("claude-haiku-4-5", 200_000, 64_000, True),
            First("claude-3-7-sonnet-20250219", 200_000, 64_000, True),
            First("claude-3-5-sonnet-20241022", 200_000, 8_192, False),
            First("claude-3-5-haiku-latest", 200_000, 8_192, False),
            First("claude-3-opus-20240229", 200_000, 4_096, False),
            First("claude-opus-4-5", 200_000, 64_000, True),
            First("claude-opus-4-6", 1_000_000, 128_000, True),
            First("claude-opus-4-7", 1_000_000, 128_000, True),
            First("claude-sonnet-4-6", 1_000_000, 64_000, True),
        ],
        [Family(r"claude-(fable|haiku|opus|sonnet)-(4-[89]|[5-9].*)", 64_000, True)],
    ),
    "openai": Vendor(
        "openai",
        [
            First("gpt-6.1-sol", 1_050_000, 128_000, True),
            First("gpt-5", 400_000, 128_000, True),
            First("gpt-5-mini", 400_000, 128_000, True),
            First("gpt-5-nano", 400_000, 128_000, True),
            First("gpt-4.1", 1_047_576, 32_768, False),
            First("gpt-4.1-mini", 1_047_576, 32_768, False),
            First("gpt-4.1-nano", 1_047_576, 32_768, False),
            First("gpt-4o", 128_000, 16_384, False),
            First("gpt-4o-mini", 128_000, 16_384, False),
            First("o4-mini", 200_000, 100_000, True),
            First("o3", 200_000, 100_000, True),
            First("o3-mini", 200_000, 100_000, True),
            First("o1", 200_000, 100_000, True),
            First("gpt-5.1", 272_000, 128_000, True),
            First("gpt-5.2", 272_000, 128_000, True),
            First("gpt-5.3", 272_000, 128_000, True),
            First("gpt-5.4", 272_000, 128_000, True),
            First("gpt-5.4-mini", 272_000, 128_000, True),
            First("gpt-5.5", 400_000, 128_000, True),
            First("gpt-5.5-mini", 400_000, 128_000, True, (0.75, 4.5, 0.075)),
        ],
        [Family(r"gpt-[5-9].*", 128_000, True), Family(r"o[1-9](-pro)?", 100_000, True)],
    ),
    "gemini": Vendor(
        "google",
        [
            First("gemini-4-argon", 1_048_576, 65_536, True),
            First("gemini-2.5-pro", 1_048_576, 65_536, True),
            First("gemini-2.5-flash", 1_048_576, 65_536, True),
            First("gemini-2.5-flash-lite", 1_048_576, 65_536, True),
            First("gemini-3.1-pro-preview", 1_048_576, 65_536, True),
        ],
        [Family(r"gemini-[3-9].*", 65_536, True)],
    ),
    "deepseek": Vendor(
        "deepseek",
        [
            First("deepseek-flash", 1_000_000, 64_000, True),
            First("deepseek-chat", 128_000, 8_192, False),
            First("deepseek-reasoner", 128_000, 64_000, True),
        ],
        [Family(r"deepseek-(flash|pro|v[4-9].*)", 64_000, True)],
    ),
    "kimi": Vendor(
        "moonshotai",
        [First("kimi-for-coding", 262_144, 32_000, True)],  # Paid by subscription: a call has no price of its own.
        [Family(r"kimi-k[2-9].*", 32_000, True)],
    ),
    "openrouter": Vendor(
        "openrouter",
        [
            First("anthropic/claude-sonnet-5.5", 1_000_000, 64_000, True),
            First("anthropic/claude-sonnet-4.5", 200_000, 64_000, True),
        ],
        [
            Family(r"anthropic/claude-(fable|haiku|opus|sonnet)-.*", 64_000, True),
            Family(r"openai/gpt-[5-9].*", 128_000, True),
            Family(r"openai/o[1-9].*", 100_000, True),
            Family(r"openai/gpt-oss.*", 32_768, True),
            Family(r"google/gemini-.*", 65_536, True),
            Family(r"x-ai/grok-.*", 32_768, True),
            Family(r"deepseek/deepseek-(r|v[4-9]).*", 32_768, True),
            Family(r"(minimax/minimax-m[2-9]|moonshotai/kimi-k[2-9]|z-ai/glm-[4-9]).*", 32_768, True),
            Family(r"qwen/.*thinking.*", 32_768, True),
            Family(r"\w[^/]*/.*", 16_384, False),
        ],
    ),
    "ollama": Vendor(None, []),  # It serves the models that its owner loaded.
    "groq": Vendor(
        "groq",
        [
            First("openai/gpt-oss-120b", 131_072, 65_536, True),
            First("openai/gpt-oss-20b", 131_072, 65_536, True),
            First("llama-3.3-70b-versatile", 131_072, 32_768, False),
            First("llama-3.1-8b-instant", 131_072, 65_536, False),
            First("meta-llama/llama-4-scout-17b-16e-instruct", 131_072, 8_192, False),
        ],
        [
            Family(r"meta-llama/llama-4.*", 8_192, False),
            Family(r"moonshotai/.*", 16_384, False),
            Family(r"qwen/.*", 32_768, True),
        ],
    ),
    "mistral": Vendor(
        "mistral",
        [
            First("mistral-medium-latest", 262_144, 32_768, False),
            First("mistral-small-latest", 262_144, 32_768, False),
        ],
        [Family(r"(codestral|devstral|magistral|ministral|mistral)-.*", 32_768, False)],
    ),
    "xai": Vendor(
        "x-ai",
        [First("grok-4.7", 500_000, 32_768, True)],
        [Family(r".*non-reasoning", 32_768, False), Family(r"grok-(3-mini|4|build|code).*", 32_768, True)],
    ),
    "lab": Vendor(None, [First("lab-1", 200_000, 64_000, True, (0.0, 0.0, 0.0))]),
}

#: Names of models of another kind (image, audio, search, moderation) and of other tariffs.
_OTHER_KINDS = re.compile(
    r"audio|banana|batch|computer|cyber|embed|free|guard|image|live|moderation|ocr|omni|realtime|research"
    r"|robotics|search|speech|transcribe|turbo-instruct|tts|video|vision|voice|voxtral|whisper"
)
_UNITS = ("input", "output", "cache_read", "cache_write")


class Node(NamedTuple):
    """A constructor call in the data: its name and its arguments."""

    kind: str
    fields: Mapping[str, Any]


def render(source: str, as_of: date) -> str:
    """Return the catalogue that the text of genai-prices' data.py makes. One model a line, so that a diff is read."""
    providers = {node.fields["id"]: node.fields["models"] for node in _providers(source)}
    parts = []
    for name, vendor in _VENDORS.items():
        known = providers[vendor.source] if vendor.source is not None else []
        lines = ",\n".join(json.dumps(model, separators=(",", ":")) for model in _models(vendor, known, as_of))
        parts.append(f"{json.dumps(name)}:[\n{lines}\n]" if lines else f"{json.dumps(name)}:[]")
    return f'{{"as_of":"{as_of}","providers":{{\n' + ",\n".join(parts) + "\n}}\n"


def _models(vendor: Vendor, known: Sequence[Node], as_of: date) -> Iterator[dict[str, Any]]:
    """Yield the models of a provider: those that come first, then the others that the data has, in its order."""
    for first in vendor.first:
        node = next((node for node in known if _matches(node.fields["match"], first.id)), None)
        yield _first(first, node, as_of)
    ids = {first.id for first in vendor.first}
    for node in known:
        family = _family(vendor, node)
        if family is not None and node.fields["id"] not in ids and (model := _other(node, family, as_of)) is not None:
            yield model


def _first(first: First, node: Node | None, as_of: date) -> dict[str, Any]:
    price = None if node is None else _price(node, as_of)
    if price is None and first.price is not None:
        price = dict(zip(_UNITS, first.price, strict=False))
    return {
        "id": first.id,
        "name": (node is not None and node.fields.get("name")) or first.id,
        "context_window": first.context_window,
        "max_output": first.max_output,
        "reasoning": first.reasoning,
        "price": price,
    }


def _other(node: Node, family: Family, as_of: date) -> dict[str, Any] | None:
    """Return a model of the data; None if it says too little to use it."""
    window, price = node.fields.get("context_window"), _price(node, as_of)
    if window is None or price is None:
        return None
    return {
        "id": node.fields["id"],
        "name": node.fields.get("name") or node.fields["id"],
        "context_window": window,
        "max_output": min(family.max_output, window // 2),
        "reasoning": family.reasoning,
        "price": price,
    }


def _family(vendor: Vendor, node: Node) -> Family | None:
    """Return the family of a model that is of use to an agent; None for another kind, or one that is retired."""
    name = node.fields["id"]
    if node.fields.get("deprecated") or _OTHER_KINDS.search(name):
        return None
    return next((family for family in vendor.families if re.fullmatch(family.pattern, name)), None)


def _price(node: Node, as_of: date) -> dict[str, Any] | None:
    """Return the price of a model in US dollars for a million tokens; None if it is not known for both directions."""
    prices = {unit: value for unit in _UNITS if (value := _tariff(node, as_of).get(f"{unit}_mtok")) is not None}
    if not {"input", "output"} <= prices.keys():
        return None
    made: dict[str, Any] = {unit: float(_at(value, 0)) for unit, value in prices.items()}
    starts = {
        tier.fields["start"] for value in prices.values() if isinstance(value, Node) for tier in value.fields["tiers"]
    }
    # A tier that begins where the window ends is for a longer window that has to be asked for; we do not.
    window = node.fields.get("context_window") or float("inf")
    tiers = [
        {"above": start, **{unit: float(_at(value, start + 1)) for unit, value in prices.items()}}
        for start in sorted(starts)
        if start < window
    ]
    return made | ({"tiers": tiers} if tiers else {})


def _tariff(node: Node, as_of: date) -> Mapping[str, Any]:
    """Return the prices that hold on a day. Of those that hold at some hours only, the dearest: no bill is higher."""
    prices = node.fields.get("prices", [])
    if isinstance(prices, Node):
        return prices.fields
    holding: list[Mapping[str, Any]] = []
    for choice in prices:
        constraint = choice.fields.get("constraint")
        if constraint is None or constraint.kind == "TimeOfDateConstraint":
            holding.append(choice.fields["prices"].fields)
        elif constraint.fields["start_date"] <= as_of:
            holding = [choice.fields["prices"].fields]
    return max(holding, key=lambda fields: _at(fields.get("input_mtok", Decimal(0)), 0), default={})


def _at(price: Any, tokens: int) -> Decimal:
    """Return the price that holds for a call of so many input tokens."""
    if not isinstance(price, Node):
        return Decimal(price)
    reached = [tier.fields for tier in price.fields["tiers"] if tokens > tier.fields["start"]]
    last = max(reached, key=lambda tier: int(tier["start"]), default={"price": price.fields["base"]})
    return Decimal(last["price"])


def _matches(clause: Node, name: str) -> bool:
    """True if a clause of the data means the model of that name."""
    match clause.kind, next(iter(clause.fields.values())):
        case "ClauseEquals", text:
            return name == str(text).lower()
        case "ClauseStartsWith", text:
            return name.startswith(str(text).lower())
        case "ClauseEndsWith", text:
            return name.endswith(str(text).lower())
        case "ClauseContains", text:
            return str(text).lower() in name
        case "ClauseRegex", text:
            return re.search(text, name) is not None
        case "ClauseOr", clauses:
            return any(_matches(inner, name) for inner in clauses)
        case "ClauseAnd", clauses:
            return all(_matches(inner, name) for inner in clauses)
        case kind, _:
            raise ValueError(f"the data has a clause that is new: {kind}")


def _providers(source: str) -> list[Node]:
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            assert statement.target.id == "providers"
            assert statement.value is not None
            return [_value(element) for element in _elements(statement.value)]
    raise ValueError("this is not the data of genai-prices: it names no providers")


def _elements(expression: ast.expr) -> list[ast.expr]:
    assert isinstance(expression, ast.List)
    return expression.elts


def _value(expression: ast.expr) -> Any:
    """Return the value of an expression of the data, without running it."""
    match expression:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Call(func=ast.Name(id="Decimal"), args=[ast.Constant(value=text)]):
            return Decimal(str(text))
        case ast.Call(func=ast.Attribute(attr="date"), args=args):
            return date(*(_value(arg) for arg in args))
        case ast.Call(func=ast.Name(id=kind), args=[], keywords=keywords):
            return Node(kind, {str(keyword.arg): _value(keyword.value) for keyword in keywords})
        case _:
            return None  # Times of day and the like, which are not used here.


def _read(path: Path) -> str:
    if path.is_dir():
        return (path / "genai_prices" / "data.py").read_text()
    with zipfile.ZipFile(path) as wheel:
        return wheel.read("genai_prices/data.py").decode()


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description="Write src/zot/providers/catalogue.json.")
    parser.add_argument("package", type=Path, help="genai-prices: a wheel, or the directory it was unpacked to")
    parser.add_argument("--as-of", type=date.fromisoformat, required=True, metavar="YYYY-MM-DD")
    given = parser.parse_args()
    PATH.write_text(render(_read(given.package), given.as_of))


if __name__ == "__main__":
    main()
