"""`zot doctor`: checks the set-up and whether services can be reached. Never shows a secret."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from zot.config import flags
from zot.config.auth_file import check as check_auth_file
from zot.config.auth_file import path_in
from zot.config.base_url import split_url
from zot.config.config import (
    AGENT_FLAGS,
    PROXY_NAMES,
    Config,
    config_directory,
    keyless_environment,
    resolve,
    rule_warning,
    zot_home,
)
from zot.config.configured_agents import AgentConfigs
from zot.config.credentials import Credential, find, stored_for
from zot.config.paths import locate
from zot.config.policy import Policy
from zot.config.private_paths import private_paths
from zot.config.protected_paths import protected_paths
from zot.config.tokens import names_in
from zot.config.tokens import path_in as token_path_in
from zot.config.vendors import VENDORS, Endpoint, Vendor, endpoint
from zot.errors import AgentError, ConfigError, ProviderError, UsageError
from zot.mcp.server_settings import find_servers
from zot.mcp.tool_cache import ToolCache
from zot.providers.base import Transport
from zot.providers.http import HttpTransport, find_proxy
from zot.providers.model_listing import Outcome, probe
from zot.runtime.key_command import KeyCommand
from zot.tools.guardian import open_processes
from zot.tools.guardian_process.kernel import why_no_keyring
from zot.tools.sandbox import PROTECTIONS, SandboxSupport, find_bwrap, find_support, why_no_bwrap
from zot.ui.readable import counted
from zot.version import __version__

_LITTLE_SPACE_BYTES = 200 * 1024 * 1024
_OTHERS = 0o077

_STATUS: Mapping[Outcome, Literal["ok", "warn", "fail"]] = {
    "accepted": "ok",
    "unclear": "warn",
    "refused": "fail",
    "unreachable": "fail",
}

MANUAL = flags.Manual(
    "zot doctor",
    """\
Check the set-up and print one line per item: configuration, keys, policy, proxy, sandbox, MCP servers, disk.
Asks each service that has a key whether it accepts the key. The flags of `zot rpc` choose the provider.""",
    (
        flags.Flag("--offline", "Contact no service, and run no command that prints a key."),
        flags.Flag("--json", "Print one JSON object."),
        *AGENT_FLAGS,
    ),
    examples=(("zot doctor --offline", "Check the set-up without network."),),
    exits={0: "The chosen provider works.", 1: "It does not work.", 2: "Wrong usage."},
)


class DoctorCheck(msgspec.Struct, frozen=True):
    """One check. ``none``: the thing is missing, and optional."""

    name: str
    status: Literal["ok", "warn", "fail", "none"]
    detail: str


class DoctorReport(msgspec.Struct, frozen=True):
    """All checks; ``ok`` if the selected provider works."""

    ok: bool
    provider: str
    checks: tuple[DoctorCheck, ...]


async def examine(config: Config, *, config_dir: str | None, wrong: str, is_offline: bool) -> DoctorReport:
    """Run all checks. ``wrong`` is the error in the settings; the services are asked concurrently."""
    cwd = _cwd(config)
    transport = HttpTransport(config.environment)
    try:
        async with asyncio.TaskGroup() as group:
            asking = [
                group.create_task(_provider(vendor, config, transport, is_offline=is_offline), name=vendor.name)
                for vendor in VENDORS.values()
            ]
    finally:
        await transport.close()
    env = config.environment
    checks = (
        DoctorCheck("version", "ok", f"zot {__version__}"),
        DoctorCheck("python", "ok", f"{platform.python_version()}, {sys.executable}"),
        DoctorCheck("platform", "ok", platform.platform()),
        _home(zot_home(env)),
        _config_file(config_dir or zot_home(env), wrong),
        _auth_file(zot_home(env)),
        _token_file(env, config_dir),
        *_api_key(config),
        *_policy(config),
        _proxy(config),
        _certificates(env),
        *(task.result() for task in asking),
        *_unknown(config.provider),
        *await _sandbox(env, cwd),
        *_protections(config, cwd),
        *_servers(config, cwd),
        _program("git", env, "models often use it"),
        _disk(zot_home(env) or cwd),
    )
    used = [check.status for check in checks if check.name == config.provider]
    return DoctorReport(not wrong and "fail" not in used and used != [], config.provider, checks)


async def _provider(vendor: Vendor, config: Config, transport: Transport, *, is_offline: bool) -> DoctorCheck:
    """Check a provider's key and whether the service accepts it. A failure only of the selected provider."""
    is_used = vendor.name == config.provider
    used = " (selected)" if is_used else ""
    try:
        where = _where(vendor, config)
        found = find(vendor, config.api_key if is_used else None, config.environment, base_url=where.base_url)
        lacking = "" if found is not None else _other_key(vendor, config.environment)
    except ConfigError as problem:
        return DoctorCheck(vendor.name, "fail" if is_used else "warn", f"{problem}{used}")
    if found is None and vendor.needs_key and not where.elsewhere:
        advice = f"{lacking or 'no key'}: set {' or '.join(vendor.key_names)}, or run `zot login {vendor.name}`"
        return DoctorCheck(vendor.name, "fail" if is_used else "none", f"{advice}{used}")
    source = f"{lacking or 'needs no key'}{used}" if found is None else f"key from {found.origin}{used}"
    reason = "not asked" if is_offline else _why_not_asked(vendor, found, config)
    if reason:
        return DoctorCheck(vendor.name, "ok" if found or is_used else "none", f"{source}; {reason}")
    status, detail = await _probe(vendor, where, found, config, transport)
    return DoctorCheck(vendor.name, "warn" if status == "fail" and not is_used else status, f"{source}; {detail}")


def _other_key(vendor: Vendor, env: Mapping[str, str]) -> str:
    """Report a stored key that is not used because it is for another address; "" if there is none."""
    address = stored_for(vendor, env)
    return f"a key is stored, but for another address ({_place(address)})" if address else ""


def _why_not_asked(vendor: Vendor, found: Credential | None, config: Config) -> str:
    """Return the reason for not asking a service: it is unused, or needs a user's input; "" to ask it."""
    if vendor.name == "lab":
        return "scripted, without a network"
    if vendor.name == config.provider:
        return ""
    if found is not None:
        return "not checked, because the command may ask questions" if found.command else ""
    return "" if any(config.environment.get(name) for name in vendor.base_url_names) else "not asked"


async def _probe(
    vendor: Vendor, where: Endpoint, found: Credential | None, config: Config, transport: Transport
) -> tuple[Literal["ok", "warn", "fail"], str]:
    try:
        key = await _key(vendor, found, config.environment)
    except ProviderError as problem:
        return "fail", str(problem)
    probed = await probe(vendor, where, key, transport)
    return _STATUS[probed.outcome], f"{_place(where.base_url)}: {probed.detail}"


def _where(vendor: Vendor, config: Config) -> Endpoint:
    if vendor.name == config.provider:
        return endpoint(vendor, api=config.api, base_url=config.base_url, env=config.environment)
    return endpoint(vendor, api=None, base_url=None, env=config.environment)


async def _key(vendor: Vendor, found: Credential | None, env: Mapping[str, str]) -> str:
    if found is None:
        return ""
    return found.key or await KeyCommand(vendor.name, found.command, keyless_environment(env)).read()


def _place(base_url: str) -> str:
    """Return the address without parts that could be secret."""
    try:
        return split_url(base_url).origin.label
    except AgentError:
        return "its address"


def _unknown(provider: str) -> tuple[DoctorCheck, ...]:
    if provider in VENDORS:
        return ()
    return (DoctorCheck(provider, "fail", f"unknown provider; known: {', '.join(sorted(VENDORS))}"),)


def _cwd(config: Config) -> str:
    try:
        return os.path.abspath(config.cwd or os.getcwd())
    except FileNotFoundError:
        raise ConfigError("the current directory no longer exists; choose another cwd (--cwd DIR)") from None


def _home(home: str | None) -> DoctorCheck:
    if home is None:
        return DoctorCheck("ZOT_HOME", "warn", "none; set ZOT_HOME or HOME")
    try:
        mode = stat.S_IMODE(os.stat(home).st_mode)
    except FileNotFoundError:
        return DoctorCheck("ZOT_HOME", "none", f"{home}: does not exist yet")
    except OSError as problem:
        return DoctorCheck("ZOT_HOME", "warn", f"{home}: {problem.strerror}")
    if mode & _OTHERS:
        return DoctorCheck("ZOT_HOME", "warn", f"{home}: mode {mode:04o}, open to others; try: chmod 700 {home}")
    return DoctorCheck("ZOT_HOME", "ok", f"{home}: mode {mode:04o}")


def _config_file(directory: str | None, wrong: str) -> DoctorCheck:
    if wrong:
        return DoctorCheck("config.toml", "fail", wrong)
    path = os.path.join(directory or "", "config.toml")
    if directory is None or not os.path.exists(path):
        return DoctorCheck("config.toml", "none", "none; the defaults apply")
    return DoctorCheck("config.toml", "ok", f"{path}: valid")


def _auth_file(home: str | None) -> DoctorCheck:
    try:
        names = None if home is None else check_auth_file(home)
    except ConfigError as problem:
        return DoctorCheck("auth.json", "fail", str(problem))
    if home is None or names is None:
        return DoctorCheck("auth.json", "none", "none; create it with: zot login PROVIDER")
    mode = stat.S_IMODE(os.stat(path_in(home)).st_mode)
    known = ", ".join(name for name in names if name in VENDORS) or "no known provider"
    return DoctorCheck("auth.json", "ok", f"{path_in(home)}: mode {mode:04o}, for {known}")


def _token_file(env: Mapping[str, str], config_dir: str | None) -> DoctorCheck:
    """Check the tokens of the daemon's remote clients."""
    try:
        path = token_path_in(locate(env, config_dir=config_dir).data_dir)
    except ConfigError as problem:
        return DoctorCheck("tokens", "none", str(problem))
    try:
        names = names_in(path)
    except ConfigError as problem:
        return DoctorCheck("tokens", "warn", str(problem))
    if names is None:
        return DoctorCheck("tokens", "none", "none; create one with: zot daemon --listen URL")
    return DoctorCheck("tokens", "ok", f"{path}: for {', '.join(names)}")


def _api_key(config: Config) -> tuple[DoctorCheck, ...]:
    if not config.api_key:
        return ()
    advice = "every user of this machine can see it in the list of processes; use `zot login` or the environment"
    return (DoctorCheck("--api-key", "warn", advice),)


def _policy(config: Config) -> tuple[DoctorCheck, ...]:
    """Check which tools the rules name."""
    try:
        rules = Policy.parse(config.policy).rules
        warnings = [one for rule in rules if (one := rule_warning(config, rule.tool))]
    except ConfigError as problem:
        return (DoctorCheck("policy", "fail", str(problem).removeprefix("policy: ")),)
    if warnings:
        return tuple(DoctorCheck("policy", "warn", one.removeprefix("policy: ")) for one in warnings)
    return (DoctorCheck("policy", "ok", counted(len(rules), "rule")),) if rules else ()


def _proxy(config: Config) -> DoctorCheck:
    vendor = VENDORS.get(config.provider)
    names = [name for name in PROXY_NAMES if config.environment.get(name)]
    if vendor is None or vendor.name == "lab" or not names:
        return DoctorCheck("proxy", "none", "none is used")
    try:
        proxy = find_proxy(split_url(_where(vendor, config).base_url).origin, config.environment)
    except AgentError as problem:
        return DoctorCheck("proxy", "fail", f"{', '.join(names)}: {problem}")
    if proxy is None:
        return DoctorCheck("proxy", "none", f"none is used for {vendor.name}, in spite of {', '.join(names)}")
    return DoctorCheck("proxy", "ok", f"{proxy.label}, for {vendor.name}")


def _certificates(env: Mapping[str, str]) -> DoctorCheck:
    named = {name: env[name] for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if env.get(name)}
    if not named:
        return DoctorCheck("certificates", "ok", "the system's")
    unreadable = [name for name, path in named.items() if not os.access(path, os.R_OK)]
    detail = ", ".join(f"{name}={path}" for name, path in named.items())
    if unreadable:
        return DoctorCheck("certificates", "fail", f"{detail}: {unreadable[0]} cannot be read")
    return DoctorCheck("certificates", "ok", detail)


async def _sandbox(env: Mapping[str, str], cwd: str) -> list[DoctorCheck]:
    """Check bubblewrap and each protection of the sandbox."""
    found = find_bwrap(env.get("PATH"), outside=[cwd])
    if found is None:
        reason = why_no_bwrap(env.get("PATH"), outside=[cwd])
        missing = DoctorCheck("bubblewrap", "none", f"for --lock, and extensions with permissions: {reason}")
        return [missing, *_unprotected()]
    detail = f"{found}, for --lock and extensions with permissions"
    processes = open_processes()
    try:
        plain = await find_support(found, processes, keyless_environment(env))
        alone = (
            plain
            if isinstance(plain, str)
            else await find_support(found, processes, keyless_environment(env), ("--unshare-net",))
        )
    finally:
        await processes.close()
    if isinstance(plain, str):
        return [DoctorCheck("bubblewrap", "warn", f"{detail}, {plain}"), *_unprotected()]
    return [
        DoctorCheck("bubblewrap", "ok", detail),
        *_protected_by(plain),
        _keyring(),
        DoctorCheck("network", "ok", "locked commands have no network; --lock-net shares it")
        if not isinstance(alone, str)
        else DoctorCheck("network", "warn", f"cannot be removed, so locked commands need --lock-net: {alone}"),
    ]


def _keyring() -> DoctorCheck:
    if problem := why_no_keyring():
        return DoctorCheck("keyring", "warn", f"commands share the session keyring: {problem}")
    return DoctorCheck("keyring", "ok", "commands have a session keyring of their own")


def _unprotected() -> list[DoctorCheck]:
    names = [*(one.key for one in PROTECTIONS), "network"]
    return [
        DoctorCheck(name, "none", "needs a working bubblewrap; without it, locked commands do not run")
        for name in names
    ]


def _protected_by(support: SandboxSupport) -> list[DoctorCheck]:
    return [
        DoctorCheck(one.key, "ok", f"{one.name} of the sandbox: {' '.join(one.options)}")
        if one in support.works
        else DoctorCheck(one.key, "warn", f"does not work here: {one.lost}")
        for one in PROTECTIONS
    ]


def _protections(config: Config, cwd: str) -> list[DoctorCheck]:
    """Report what zot hides and protects in this directory."""
    try:
        private = private_paths(config, cwd)
    except ConfigError as problem:
        return [DoctorCheck("hidden", "warn", str(problem))]
    existing = [one.path for one in private if os.path.lexists(one.path)]
    protected = [path for path in protected_paths(config.protected) if os.path.lexists(os.path.join(cwd, path))]
    return [
        DoctorCheck("hidden", "ok", f"hidden from --lock and confined extensions: {', '.join(existing) or 'none yet'}"),
        DoctorCheck("protected", "ok", f"read-only under --lock: {', '.join(protected) or 'none'}"),
    ]


def _servers(config: Config, cwd: str) -> list[DoctorCheck]:
    """Check the MCP servers, without starting one: how each failed when it was last used is known."""
    checks, cache = [], ToolCache.of(config)
    for one in find_servers(config, cwd):
        failure = cache.problem(one.digest) if one.runs else ""
        problem = one.problem or (failure and f"{failure}; its log: zot mcp logs {one.name}")
        status: Literal["ok", "warn", "none"] = "none" if not one.enabled else "warn" if problem else "ok"
        checks.append(DoctorCheck(f"mcp {one.name}", status, problem or (one.label if one.enabled else "disabled")))
    return checks


def _program(name: str, env: Mapping[str, str], why: str) -> DoctorCheck:
    found = shutil.which(name, path=env.get("PATH"))
    return DoctorCheck(name, "ok", found) if found else DoctorCheck(name, "none", f"not on the PATH; {why}")


def _disk(place: str) -> DoctorCheck:
    place = os.path.abspath(place)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    detail = f"{free / 1024**3:.1f} GiB free for {place}"
    return DoctorCheck("disk", "warn" if free < _LITTLE_SPACE_BYTES else "ok", detail)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    if (given := flags.parse_or_help(argv, MANUAL)) is None:
        return 0
    settings, words = given
    if words:
        raise UsageError("zot doctor takes no words, only flags")
    is_offline, as_json = settings.pop("offline", False), settings.pop("json", False)
    config_dir = settings.get("config_dir")
    config, wrong = _config(settings)
    report = asyncio.run(examine(config, config_dir=config_dir, wrong=wrong, is_offline=is_offline))
    _show(report, as_json=as_json)
    return 0 if report.ok else 1


def _config(settings: Mapping[str, Any]) -> tuple[Config, str]:
    """Return the config and "", or the default config and the error."""
    try:
        AgentConfigs.load(config_directory(settings))  # Checks the whole file, not only the selected agent.
        return resolve(settings), ""
    except ConfigError as problem:
        return Config(), str(problem)


def _show(report: DoctorReport, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        return
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        sys.stdout.write(_line(check, width) + "\n")


def _line(check: DoctorCheck, width: int) -> str:
    return f"{check.status:<5} {check.name:<{width}}  {check.detail}"
