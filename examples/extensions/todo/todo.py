#!/usr/bin/env python3
"""A list of things to do that stays: a panel for the person, a tool for the model, both on the same file."""

import json
import os
import pathlib
import threading
from typing import Literal

import zot.ext

todo = zot.ext.Extension("todo", "1.0.0")
# Tools run beside what the panel does.
lock = threading.Lock()
cursor = {"at": 0}


def place() -> pathlib.Path:
    """Return where the list is kept: apart from the program, where a change needs no new trust."""
    return todo.data_dir / "data" / "todos.json"


def load() -> list[dict]:
    try:
        return json.loads(place().read_text())
    except FileNotFoundError:
        return []


def save(items: list[dict]) -> None:
    """Write the list whole or not at all."""
    place().parent.mkdir(exist_ok=True)
    new = place().with_suffix(".new")
    new.write_text(json.dumps(items, indent=1))
    os.replace(new, place())


@todo.panel("todos-main", title="Todos", footer="↑/↓ navigate - x done - d delete - esc close")
def panel() -> list[str]:
    items = load()
    return [
        f"{'>' if at == cursor['at'] else ' '} {'✓' if item['done'] else '□'} {item['text']}"
        for at, item in enumerate(items)
    ] or ["Nothing to do. Add something with /todo TEXT."]


@panel.key
def pressed(key: str, text: str) -> None:
    with lock:
        items = load()
        if key in ("up", "down"):
            move_to(cursor["at"] + (1 if key == "down" else -1), items)
        elif text == "x" and items:
            item = items[cursor["at"]]
            item["done"] = not item["done"]
            save(items)
        elif text == "d" and items:
            del items[cursor["at"]]
            move_to(cursor["at"], items)
            save(items)


def move_to(at: int, items: list[dict]) -> None:
    cursor["at"] = max(0, min(len(items) - 1, at))


@todo.command("todo", "show the list, or add something to it")
def show(args: str) -> zot.ext.Response | str:
    if not args:
        return panel.open()
    return change("add", args)


@todo.tool("todo")
def change(action: Literal["list", "add", "done"], text: str = "") -> str:
    """Keep the user's list of things to do.

    Args:
        action: What to do: list everything, add something, or mark something as done.
        text: The item to add, or the exact text of the one that is done.
    """
    with lock:
        items = load()
        if action == "add":
            items.append({"text": text, "done": False})
        for item in items:
            if action == "done" and item["text"] == text:
                item["done"] = True
                break
        else:
            if action == "done":
                raise zot.ext.ToolError(f"nothing to do is called {text!r}")
        save(items)
    panel.render()
    return "\n".join(f"[{'x' if item['done'] else ' '}] {item['text']}" for item in items) or "nothing to do"


if __name__ == "__main__":
    todo.run()
