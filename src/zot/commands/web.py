"""`zot web`: open the dashboard of the daemon in a browser; pair, list and revoke devices."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import msgspec

from zot.commands.daemon import listen_addresses
from zot.commands.daemon_manage import DaemonStatus, place_of, read_status, stop
from zot.commands.subcommands import (
    FAILED,
    NOT_RUNNING,
    CommandGroup,
    CommandRequest,
    Subcommand,
    aligned,
    print_note,
    write,
    write_json,
)
from zot.config import flags
from zot.config.file import DaemonSettings, ListenAddress
from zot.config.flags import Flag
from zot.config.pairing import CODE_S, DEVICE_PREFIX, open_pairing
from zot.config.paths import DaemonPaths
from zot.config.tokens import check_name, path_in, read_scoped, revoke, scoped_path_beside
from zot.errors import UsageError, UserError
from zot.files import replace_file
from zot.messages import timestamp
from zot.text import did_you_mean, printable
from zot.wire.daemon import ROLES

#: Where a daemon that `zot web` starts listens, unless --port names another port.
DEFAULT_PORT = 7777
#: What a paired browser may do unless --role limits it: everything but connecting extensions.
_ROLES = tuple(role for role in ROLES if role != "extend")
_START_S = 15.0
#: Longest path of a Unix socket that all systems take.
_MAX_SOCKET_PATH = 100


class WebStatus(msgspec.Struct, frozen=True):
    """The state of the dashboard. ``urls`` are its addresses, without a code."""

    running: bool
    urls: tuple[str, ...]
    devices: int


class Device(msgspec.Struct, frozen=True):
    """A paired browser."""

    name: str
    roles: tuple[str, ...]
    paired: str
    expires: str | None


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code. Without a subcommand, start the dashboard."""
    starts = not argv or (argv[0].startswith("-") and argv[0] not in ("--help", "-h", "--help-all"))
    return GROUP.main(["start", *argv] if starts else argv)


def start(request: CommandRequest) -> int:
    """Find or start the daemon, and print a pairing link; with --open, open it in the browser."""
    place, roles = place_of(request), _roles(request)
    check_name(f"{DEVICE_PREFIX}{request.settings.get('name', '')}")
    found = read_status(place)
    if not found.running and found.problem is None:
        found = _started(place, request)
    return _offer(request, _url_of(found), found.data_dir, roles)


def pair(request: CommandRequest) -> int:
    """Print a pairing link for another browser, on a terminal also as a QR code; return 3 if no daemon runs.

    Raise UserError if the daemon does not offer the dashboard.
    """
    roles = _roles(request)
    found = read_status(place_of(request))
    if not found.running and found.problem is None:
        print_note(f"No daemon is running at {found.endpoint}. Start the dashboard with: zot web")
        return NOT_RUNNING
    url: str = request.settings.get("url") or _url_of(found, for_others=True)
    return _offer(request, url, found.data_dir, roles, as_code=sys.stdout.isatty())


def status(request: CommandRequest) -> int:
    """Report whether the dashboard can be reached, and where; return 0 if so, 3 if not."""
    found = read_status(place_of(request))
    urls = _urls(found.listens or ())
    state = WebStatus(found.running and bool(urls), urls, len(_devices(found.data_dir)))
    if request.json:
        write_json(state)
    elif state.running:
        write(aligned([*(("dashboard", printable(url)) for url in urls), ("devices", str(state.devices))]))
    else:
        write("The dashboard is not running. Start it with: zot web\n")
    if found.problem is not None:
        print_note(found.problem)
        return FAILED
    return 0 if state.running else NOT_RUNNING


def devices(request: CommandRequest) -> int:
    """List the paired browsers."""
    known = _devices(place_of(request).data_dir)
    if request.json:
        write_json(known)
    elif not known:
        print_note("no browser is paired; print a link with: zot web pair")
    else:
        rows = [(one.name, ", ".join(one.roles), one.paired, one.expires or "never") for one in known]
        write(aligned([("NAME", "ROLES", "PAIRED", "END"), *rows]))
    return 0


def revoke_device(request: CommandRequest) -> int:
    """Unpair a browser; its connections are closed. Raise UserError if no device has the name."""
    place, name = place_of(request), request.words[0]
    if name not in {one.name for one in _devices(place.data_dir)}:
        raise UserError(f"no device is named {name!r}; list them with: zot web devices")
    revoke(path_in(place.data_dir), f"{DEVICE_PREFIX}{name}")
    print_note(f"unpaired the device {name!r} and closed its connections")
    return 0


def _roles(request: CommandRequest) -> tuple[str, ...]:
    """Return the roles that the flags grant. Raise UsageError."""
    given = [role.strip() for one in request.settings.get("role", ()) for role in one.split(",")]
    if unknown := [role for role in given if role not in _ROLES]:
        near = did_you_mean(unknown[0], _ROLES)
        raise UsageError(f"--role: unknown role {unknown[0]!r}; known: {', '.join(_ROLES)}{near}")
    return (*dict.fromkeys(given),) or _ROLES


def _offer(request: CommandRequest, url: str, data_dir: str, roles: tuple[str, ...], *, as_code: bool = False) -> int:
    """Print a one-time link, also as a QR code, or pass it to the browser."""
    code = open_pairing(path_in(data_dir), name=request.settings.get("name", ""), roles=roles, now=time.time())
    # In the fragment: browsers send it to no server, so it is in no log.
    link = f"{url}#pair={code}"
    if request.settings.get("open") and _opened(link, data_dir):
        print_note(f"the dashboard at {url} opens in your browser")
        return 0
    if as_code:
        from zot.ui.qr_code import matrix, rendered  # Imported lazily: only a terminal shows one.

        write(f"{rendered(matrix(link))}\n")
        if _is_here(url):
            print_note(
                f"{url} is an address that only this machine reaches; name one for other devices with: --url URL"
            )
    write(f"{link}\n")
    sys.stdout.flush()
    print_note(
        f"open this link within {CODE_S / 60:.0f} minutes; it works once and grants the roles: {', '.join(roles)}"
    )
    return 0


def _opened(link: str, data_dir: str) -> bool:
    """Open a link in the browser. False if there is no browser.

    The link is passed in a private file: other users can read a program's arguments while it starts.
    """
    import webbrowser  # Imported lazily: only --open needs it.

    path = os.path.join(data_dir, "dashboard.html")
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={link}">\n'
    replace_file(path, page.encode())
    try:
        return webbrowser.open(f"file://{path}")
    except webbrowser.Error:
        return False


def _url_of(found: DaemonStatus, *, for_others: bool = False) -> str:
    """Return the address of the dashboard of a running daemon, for other machines if it has one. Raise UserError."""
    if not found.running:
        raise UserError(f"the daemon at {found.endpoint} cannot be used: {found.problem}")
    urls = _urls(found.listens or ())
    if not urls:
        raise UserError(
            f"the daemon at {found.endpoint} has no network address: give it one with"
            f" `zot daemon --replace --listen ws://127.0.0.1:{DEFAULT_PORT}`"
        )
    reached = [one for one in urls if not _is_here(one)] if for_others else []
    return [*reached, *urls][0]


def _is_here(url: str) -> bool:
    """True for an address that only this machine reaches."""
    return ListenAddress("ws", urlsplit(url).hostname or "", 0, "").is_loopback


def _dashboard_url(text: str) -> str:
    """Return the address of the dashboard below ``text``. Raise UsageError if it is none that may carry a cookie."""
    url = text.rstrip("/").removesuffix("/web") + "/web/"
    try:
        is_safe = urlsplit(url).scheme == "https" or (urlsplit(url).scheme == "http" and _is_here(url))
    except ValueError:
        is_safe = False
    if not is_safe or not urlsplit(url).hostname or any(one in url for one in "#?@\\ ") or not url.isprintable():
        raise UsageError(f"--url: {text!r} is not an address such as https://box.example/web/")
    return url


def _urls(listens: Sequence[str]) -> tuple[str, ...]:
    """Return the pages at the daemon's addresses, those on this machine first."""
    local = [one for one in listens if ListenAddress.parse(one).is_loopback]
    ordered = [*local, *(one for one in listens if one not in local)]
    return tuple(f"http{one.removeprefix('ws').rstrip('/')}/web/" for one in ordered)


def _started(place: DaemonPaths, request: CommandRequest) -> DaemonStatus:
    """Start a daemon that outlives this command, and wait until it listens. Raise UserError, ConfigError."""
    settings = request.settings
    url = f"ws://127.0.0.1:{settings.get('port', DEFAULT_PORT)}"
    listen_addresses({"listen": (url,)}, DaemonSettings())  # Reports a missing extra.
    places = [
        word
        for name in ("socket", "config_dir")
        if settings.get(name)
        for word in (f"--{name.replace('_', '-')}", str(settings[name]))
    ]
    with tempfile.TemporaryFile() as said, _Readiness() as readiness:
        process = subprocess.Popen(
            [sys.executable, "-m", "zot", "daemon", "--listen", url, *places],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            start_new_session=True,
            env={**os.environ, "NOTIFY_SOCKET": readiness.address},
        )
        if readiness.comes(process):
            found = read_status(place)
            if found.running and found.listens:
                print_note(f"started a daemon, process {found.pid}; zot web stop ends it")
                return found
        said.seek(0)
        reason = said.read().decode("utf-8", "replace").strip().removeprefix("zot: ")
        raise UserError(f"the daemon did not start: {reason or 'it did not listen in time'}")


class _Readiness:
    """A socket at which a daemon notifies that it is ready, as it notifies systemd."""

    def __init__(self) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="zot-")
        if len(os.fsencode(self._place.name)) > _MAX_SOCKET_PATH - len("/ready"):
            self._place.cleanup()
            self._place = tempfile.TemporaryDirectory(prefix="zot-", dir="/tmp")
        self.address = os.path.join(self._place.name, "ready")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)

    def __enter__(self) -> _Readiness:
        return self

    def __exit__(self, *problem: object) -> None:
        self._socket.close()
        self._place.cleanup()

    def comes(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until a daemon is ready; False if it ended, or took too long."""

        def wait_for_end() -> None:
            process.wait()
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
                line.sendto(b"ENDED", self.address)

        threading.Thread(target=wait_for_end, daemon=True).start()
        deadline = time.monotonic() + _START_S
        with suppress(TimeoutError):
            while (left := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left)
                told = self._socket.recv(4096)
                if told == b"ENDED" or told.startswith(b"READY=1"):
                    return told != b"ENDED"
        return False


def _devices(data_dir: str) -> tuple[Device, ...]:
    return tuple(
        Device(
            one.name.removeprefix(DEVICE_PREFIX),
            one.roles,
            timestamp(one.created),
            None if one.expires is None else timestamp(one.expires),
        )
        for one in read_scoped(scoped_path_beside(path_in(data_dir)))
        if one.name.startswith(DEVICE_PREFIX) and (one.expires is None or one.expires > time.time())
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise UsageError(f"--port: {text!r} is not a port")
    return int(text)


_JSON = Flag("--json", "Print JSON.")
_PAIRING = (
    Flag("--name", "Give the device this name (default: random).", value="NAME"),
    Flag("--role", "Grant only view, prompt, approve or self_approve (default: all four).", value="ROLE", many=True),
)
GROUP = CommandGroup("zot web", "Open the dashboard of the daemon in a browser. `zot web` alone is `zot web start`.", (
    Subcommand("start", "", "Find or start the daemon and print a one-time pairing link.", start, flags=(
        Flag("--open", "Open the link in the browser instead of printing it."),
        Flag("--port", f"Listen at this port if a daemon must be started (default: {DEFAULT_PORT}).", value="PORT",
             parse=_port),
        *_PAIRING,
    )),
    Subcommand("pair", "", "Print a one-time pairing link for another browser; on a terminal, also as a QR code.", pair,
               flags=(
        *_PAIRING,
        Flag("--url", "Use this address of the dashboard, such as https://box.example/web/.", value="URL",
             parse=_dashboard_url),
    )),
    Subcommand("status", "", "Show where the dashboard is, and how many devices are paired.", status, flags=(_JSON,)),
    Subcommand("devices", "", "List the paired browsers.", devices, flags=(_JSON,)),
    Subcommand("revoke", "NAME", "Unpair a browser and close its connections.", revoke_device, (1, 1)),
    Subcommand("stop", "", "Stop the daemon, and with it the dashboard.", stop, flags=(
        Flag("--timeout", "Wait this long (default: 30).", value="SECONDS", parse=flags.seconds),
        _JSON,
    )),
), flags=flags.PLACE_FLAGS, examples=(
    ("zot web --open", "Open the dashboard, starting the daemon if none runs."),
    ("zot web pair --name phone --role view,approve", "Pair a browser that can watch and approve, but not prompt."),
), more_examples=(
    ("zot web start --port 8080 --open", "Start the daemon at another port and open the dashboard."),
    ("zot web status", "Print the address."),
    ("zot web devices --json", "Print the paired browsers for a program."),
    ("zot web revoke phone", "Unpair a lost phone."),
    ("zot web stop", "End the daemon and every run."),
), exits={
    0: "Done.", 1: "Failed, or the daemon does not answer.", 2: "Wrong usage.", 3: "No daemon is running.",
})  # fmt: skip
