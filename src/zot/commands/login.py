"""`zot login`: ask for a provider's key without showing it, try it once, and store it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from zot.config import flags
from zot.config.auth_file import AuthEntry, path_in, remove, store
from zot.config.base_url import split_url
from zot.config.config import keyless_environment, zot_home
from zot.config.credentials import checked
from zot.config.vendors import VENDORS, Endpoint, Vendor, endpoint
from zot.errors import ConfigError, UsageError
from zot.providers.http import HttpTransport
from zot.providers.model_listing import Probed, probe
from zot.runtime.key_command import KeyCommand
from zot.text import did_you_mean

MANUAL = flags.Manual(
    "zot login PROVIDER",
    """\
Store a provider's key in $ZOT_HOME/auth.json: ask for it without showing it, and check it with the service.
If standard input is not a terminal, its first line is the key.""",
    (
        flags.Flag("--command", "Store this command, which prints the key, instead of a key.", value="LINE"),
        flags.Flag("--base-url", "Bind the key to this server, which speaks the provider's API.", value="URL"),
        flags.Flag("--no-probe", "Store the key without checking it."),
    ),
    examples=(
        ("zot login anthropic", "Type or paste a key."),
        ("zot login openai --command 'pass show openai'", "Run a password manager whenever the key is needed."),
    ),
    exits={0: "The key is stored.", 1: "Nothing was stored: the service refused the key.", 2: "Wrong usage."},
)
LOGOUT_MANUAL = flags.Manual(
    "zot logout PROVIDER",
    "Delete a provider's key, or the command that prints it, from $ZOT_HOME/auth.json.",
    examples=(("zot logout anthropic", "Delete the key."),),
    exits={0: "The key is deleted.", 1: "No key was stored.", 2: "Wrong usage."},
)
_MAX_KEY_BYTES = 16 * 1024


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code: 2 for wrong usage, 1 if nothing was stored."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    vendor = _one_provider("login", words)
    try:
        where = endpoint(vendor, api=None, base_url=settings.get("base_url"), env=os.environ)
        split_url(where.base_url)  # Raises for an invalid address before asking for the key.
        return _login(vendor, where, settings.get("command"), is_probed=not settings.get("no_probe"))
    except KeyboardInterrupt:
        sys.stderr.write("zot: interrupted; nothing was stored\n")
        return 1


def logout(argv: Sequence[str]) -> int:
    """Run `zot logout`; return its exit code: 2 for wrong usage, 1 if nothing was stored."""
    if (given := flags.parse_or_help(argv, LOGOUT_MANUAL)) is None:
        return 0
    vendor = _one_provider("logout", given[1])
    home = _home_to_store_in()
    if not remove(home, vendor.name):
        sys.stderr.write(f"zot: nothing is stored for {vendor.name} in {path_in(home)}\n")
        return 1
    sys.stdout.write(f"removed for {vendor.name} from {path_in(home)}\n")
    if name := next((name for name in vendor.key_names if os.environ.get(name)), None):
        sys.stderr.write(f"zot: {name} is still set, and zot uses its key\n")
    return 0


def _login(vendor: Vendor, where: Endpoint, command: str | None, *, is_probed: bool) -> int:
    home = _home_to_store_in()
    entry = _entry(vendor, command, where.base_url if where.elsewhere else "")
    if is_probed and not _is_accepted(vendor, where, entry):
        return 1
    store(home, vendor.name, entry)
    place = f" at {entry.base_url}" if entry.base_url else ""
    sys.stdout.write(f"stored for {vendor.name}{place} in {path_in(home)}\n")
    if name := next((name for name in vendor.key_names if os.environ.get(name)), None):
        sys.stderr.write(f"zot: {name} is set and overrides the stored key\n")
    return 0


def _one_provider(command: str, words: Sequence[str]) -> Vendor:
    """Return the named provider. Raise UsageError if it is missing, unknown or has no key."""
    known = ", ".join(name for name, vendor in VENDORS.items() if vendor.key_names)
    if len(words) != 1:
        raise UsageError(f"name a provider: zot {command} PROVIDER; known: {known}")
    vendor = VENDORS.get(words[0])
    if vendor is not None and not vendor.key_names:
        raise UsageError(f"{vendor.name} needs no key: use --provider {vendor.name}")
    if vendor is None:
        # Do not repeat the word: it may be a key typed in the wrong place.
        near = did_you_mean(words[0], known.split(", "))
        raise UsageError(f"unknown provider; use zot {command} and one of these: {known}{near}")
    return vendor


def _home_to_store_in() -> str:
    """Return the directory of auth.json. Raise ConfigError if there is none."""
    home = zot_home(os.environ)
    if home is None:
        raise ConfigError("no directory to store it in: set ZOT_HOME or HOME")
    return home


def _entry(vendor: Vendor, command: str | None, base_url: str) -> AuthEntry:
    if command is None:
        return AuthEntry(key=_ask(vendor.name), base_url=base_url)
    if not command.strip():
        raise ConfigError("--command needs a command line that prints the key")
    return AuthEntry(command=command, base_url=base_url)


def _is_accepted(vendor: Vendor, where: Endpoint, entry: AuthEntry) -> bool:
    """Print the service's verdict on the key; False if it refuses it."""
    probed = asyncio.run(_probe(vendor, where, entry))
    if probed.outcome == "refused":
        sys.stderr.write(f"zot: refused: {vendor.name}: {probed.detail}; nothing was stored\n")
        return False
    if probed.outcome == "accepted":
        sys.stdout.write(f"ok: {vendor.name}: {probed.detail}\n")
    else:
        word = "unreachable" if probed.outcome == "unreachable" else "not sure"
        sys.stderr.write(f"zot: {word}: {vendor.name}: {probed.detail}; stored without a check\n")
    return True


async def _probe(vendor: Vendor, where: Endpoint, entry: AuthEntry) -> Probed:
    key = entry.key or await KeyCommand(vendor.name, entry.command, keyless_environment(os.environ)).read()
    transport = HttpTransport(os.environ)
    try:
        return await probe(vendor, where, key, transport)
    finally:
        await transport.close()


def _ask(provider: str) -> str:
    """Return the typed key, or the first line of an input that is not a terminal. Raise ConfigError."""
    if os.isatty(0):
        with _interruptible(), _no_echo(0):
            sys.stderr.write(f"key for {provider} (it is not shown): ")
            sys.stderr.flush()
            try:
                line = _first_line(0)
            finally:
                sys.stderr.write("\n")
    else:
        line = _first_line(0)
    key = line.decode(errors="replace").strip()
    if not key:
        raise ConfigError("no key was given; nothing was stored")
    return checked(provider, key)


def _first_line(descriptor: int) -> bytes:
    data = b""
    while b"\n" not in data and len(data) <= _MAX_KEY_BYTES and (more := os.read(descriptor, 4096)):
        data += more
    if len(data) > _MAX_KEY_BYTES:
        raise ConfigError("the input is too long for a key; nothing was stored")
    return data.partition(b"\n")[0]


@contextmanager
def _no_echo(descriptor: int) -> Iterator[None]:
    """Turn echo off; always restore the terminal."""
    before = termios.tcgetattr(descriptor)
    quiet = termios.tcgetattr(descriptor)
    quiet[3] &= ~termios.ECHO
    try:
        # Flush: keys typed ahead were echoed and are not meant for us.
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, quiet)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn fatal signals into KeyboardInterrupt, so that ``finally`` runs."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    before = [(number, signal.signal(number, _interrupt)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> NoReturn:
    raise KeyboardInterrupt
