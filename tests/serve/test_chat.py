"""Chat Completions in the real program: lab, local servers, and the vendors that speak it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Zot, text_of, types


def prompt(message: str) -> dict[str, str]:
    return {"type": "prompt", "message": message}


@pytest.mark.parametrize(
    ("provider", "flags", "env"),
    [
        ("openai", ["--base-url", "URL"], {}),
        ("openai", [], {"OPENAI_BASE_URL": "URL/v1"}),
        ("ollama", [], {"OLLAMA_HOST": "HOST"}),
        ("openrouter", ["--base-url", "URL", "--api-key", "k"], {}),
    ],
)
def test_a_compatible_server_is_enough(
    zot: Callable[..., Zot], lab_url: str, provider: str, flags: list[str], env: dict[str, str]
) -> None:
    def there(value: str) -> str:
        return value.replace("URL", lab_url).replace("HOST", lab_url.removeprefix("http://"))

    addressed = {name: there(value) for name, value in env.items()}
    process = zot("--provider", provider, "--model", "any/model", *map(there, flags), env=addressed)
    process.send(prompt("!script say a ;; call read {} ;; --- ;; say b"))
    frames = process.until(type="done")
    assert (text_of(frames), types(frames)[-2:]) == ("ab", ["turn_end:end_turn", "done"])
    assert process.finish() == []


def test_lab_is_a_compatible_server_too(zot: Callable[..., Zot]) -> None:
    process = zot("--provider", "lab", "--api", "chat")
    process.send(prompt("!bash echo hi"))
    assert types(process.until(type="done")) == [
        "prompt:ok", "user_message", "turn_start", "assistant_start", "text_delta", "text_delta", "tool_use_start",
        "tool_use_args", "tool_use_args", "tool_use_args", "tool_use_end", "usage", "assistant_message", "tool_call",
        "turn_end:tool_use", "tool_progress", "tool_result", "turn_start", "assistant_start", "text_delta",
        "text_delta", "usage", "assistant_message", "turn_end:end_turn", "done",
    ]  # fmt: skip
    assert process.finish() == []


def test_a_wrong_key_is_named(zot: Callable[..., Zot], lab_url: str) -> None:
    process = zot("--provider", "openai", "--model", "m", "--base-url", lab_url, "--api-key", "sk-wrong")
    process.send(prompt("!status 401"))
    assert process.until(type="done")[-2]["message"] == (
        "openai: http 401: status 401, as scripted (check OPENAI_API_KEY, or run `zot login openai`)"
    )
    assert process.finish() == []
