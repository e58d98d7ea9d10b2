"""Private parts of Textual in use: in one place, not before an app is made, and still there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers._writer_thread import WriterThread
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, TextArea

import zot.ui.terminal
from zot.ui.terminal.composer import Editor
from zot.ui.terminal.textual_patches import _bound

FILES = sorted(Path(zot.ui.terminal.__path__[0]).glob("*.py"))
INSIDE = {"textual_patches.py"}

IMPORTED = """
import importlib, pkgutil
from textual import screen
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.drivers import linux_driver
from textual.events import Key
import zot.ui.terminal

def state():
    return (screen.UPDATE_PERIOD, linux_driver.XTermParser, linux_driver.getincrementaldecoder,
            Key.is_printable, len(ANSI_SEQUENCES_KEYS))

before = state()
for module in pkgutil.iter_modules(zot.ui.terminal.__path__):
    importlib.import_module(f"zot.ui.terminal.{module.name}")
assert state() == before, state()
zot.ui.terminal.textual_patches.prepare()
print([now != then for now, then in zip(state(), before)])
"""


def test_nothing_of_textual_is_changed_before_an_app_is_made() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout) == ("", "[True, True, True, True, True]\n")


def test_modules_the_first_frame_does_not_need_are_loaded_later() -> None:
    later = ("entries", "markdown", "pictures", "plain")
    code = (
        f"import sys, zot.ui.terminal.app; print([one for one in {later} if f'zot.ui.terminal.{{one}}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.stdout) == ("", "[]\n")


def test_no_other_module_uses_private_names_of_textual() -> None:
    assert [found for path in FILES if path.name not in INSIDE for found in _looks_inside(path)] == []
    assert any(found for path in FILES if path.name in INSIDE for found in _looks_inside(path))


def _looks_inside(path: Path) -> Iterator[str]:
    """Yield where a file uses names that are private, and none of its own."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    own |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith("textual._"):
                yield f"{path.name}: {module}"
            case ast.Attribute(attr=name) if name[0] == "_" and name[:2] != "__" and name not in own:
                yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"
            case _:
                pass


def _names(function: Callable[..., object]) -> set[str]:
    """Return the names that a function uses, in functions inside of it, too."""
    waiting, found = [function.__code__], set[str]()
    while waiting:
        code = waiting.pop()
        found |= {*code.co_names}
        waiting += [one for one in code.co_consts if isinstance(one, CodeType)]
    return found


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (Screen._update_timer.fget, {"UPDATE_PERIOD"}),  # type: ignore[attr-defined]  # it is a property
        (LinuxDriver.run_input_thread, {"XTermParser", "getincrementaldecoder"}),
        (LinuxDriver.__init__, {"_writer_thread", "_must_signal_resume"}),
        (WriterThread.__init__, {"_queue"}),
        (LinuxDriver._sigcont_application, {"resume_application_mode"}),
        (XTermParser._sequence_to_key_events, {"ANSI_SEQUENCES_KEYS"}),
        (App.__init__, {"_exit", "_exit_renderables"}),
        (App._fatal_error, {"_exit_renderables", "_close_messages_no_wait"}),
        (Widget._scroll_update, {"_refresh_scrollbars"}),
        (TextArea._on_key, {"is_printable", "character"}),
        (Input._on_key, {"is_printable", "character"}),
    ],
    ids=lambda one: getattr(one, "__qualname__", ""),
)
def test_textual_still_has_the_private_names_in_use(function: Callable[..., object], names: set[str]) -> None:
    assert names <= _names(function)
    assert isinstance(ANSI_SEQUENCES_KEYS, dict)


def test_keys_are_bound_as_textual_has_them() -> None:
    theirs = {key: found[0].action for key, found in Editor._merge_bindings().key_to_bindings.items()}
    assert _bound(Editor) == theirs
