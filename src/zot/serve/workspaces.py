"""Workspaces from Git repositories: a worker checks a session's branch out, and pushes it at the end of each run.

The model can write to the checkout, its `.git` included, so zot never runs git there: zot's own repository is outside
of the sessions' reach, and has the credentials' side of everything. It reads and writes the checkout as plain files.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from zot.config.config import SECRET_NAMES
from zot.encoding import thread_safe_type
from zot.errors import UserError, explained
from zot.extensions.install import run_program
from zot.files import make_directory
from zot.text import printable

if TYPE_CHECKING:
    from zot.serve.daemon.daemon import DaemonParts
    from zot.tools.process import Processes

log = logging.getLogger("zot")

#: Longest time for one command of git, and longest list of files.
_DEADLINE_S = 600.0
_MAX_LISTED_BYTES = 64 * 1024 * 1024
#: The pauses between attempts to push.
_PAUSES_S = (1.0, 2.0, 4.0)
_PLAIN_ID = re.compile(r"(?!.*(?:\.\.|\.lock$|\.$))[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TIP = re.compile(r"^([0-9a-f]{40,64})\t(\S+)$", re.M)
_SUBMODULE = "160000"
#: Variables for git that the operator may set. Others redirect it, or write its traffic to a log.
_KEPT_VARIABLES = ("GIT_SSH", "GIT_SSL_", "GIT_CONFIG_GLOBAL")
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS_REQUIRE": "never",
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_AUTHOR_NAME": "zot",
    "GIT_AUTHOR_EMAIL": "zot@localhost",
    "GIT_COMMITTER_NAME": "zot",
    "GIT_COMMITTER_EMAIL": "zot@localhost",
    "LC_ALL": "C",
}
#: No program of a repository's choice runs.
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=true",
    "commit.gpgSign=false",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "push.recurseSubmodules=no",
    "maintenance.auto=false",
    "gc.auto=0",
)


class _Checkout(msgspec.Struct, frozen=True):
    """The commit that a checkout began with, and the tip of the session's branch at that time; "" for none."""

    commit: str = ""
    tip: str = ""


class Workspaces:
    """The checkouts of one machine's sessions, in the data directory. The same paths are used on all machines."""

    def __init__(self, parts: DaemonParts, *, checks_out: bool) -> None:
        """A gateway never ``checks_out``: its sessions run no tools."""
        self._parts = parts
        self._checks_out = checks_out
        self._locks: dict[str, asyncio.Lock] = {}

    def has(self, agent: str) -> bool:
        """Return whether an agent works in checkouts of a repository."""
        return self._parts.agents.table(agent or "default").workspace is not None

    async def prepare(self, session_id: str, agent: str) -> str | None:
        """Return the directory of a session with the newest state of its branch; None if its agent has no repository.

        Raise UserError if the repository cannot be reached.
        """
        table = self._parts.agents.table(agent or "default")
        if table.workspace is None:
            return None
        one = self._checkout(session_id, table.workspace, table.branch or "")
        async with self._locks.setdefault(one.key, asyncio.Lock()):
            if self._checks_out:
                await one.prepare()
            else:
                make_directory(one.tree)
        return one.tree

    async def publish(self, session_id: str, agent: str) -> None:
        """Push the state of a session's checkout to its branch, if anything has changed. Failures are logged."""
        table = self._parts.agents.table(agent or "default")
        if table.workspace is None:
            return
        one = self._checkout(session_id, table.workspace, table.branch or "")
        async with self._locks.setdefault(one.key, asyncio.Lock()):
            try:
                await one.publish()
            except Exception as problem:  # The run itself has ended well.
                why = explained(problem, log, "a push")
                log.warning("session %r: its files were not pushed, and stay on this machine: %s", session_id, why)

    def _checkout(self, session_id: str, repository: str, branch: str) -> _SessionCheckout:
        env = self._parts.config("default", None, None).environment
        processes = self._parts.resources.processes("workspaces")
        return _SessionCheckout(
            self._parts.place.data_dir, session_id, repository, branch=branch, processes=processes, env=env
        )


def branch_of(session_id: str) -> str:
    """Return the branch of a session: with its id if a branch can have that name, else with a digest of it."""
    if _PLAIN_ID.fullmatch(session_id):
        return f"zot/{session_id}"
    return f"zot/{hashlib.sha256(session_id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


class _SessionCheckout:
    """The checkout of one session, and zot's own clone of its repository."""

    def __init__(
        self, place: str, session_id: str, repository: str, *, branch: str, processes: Processes, env: Mapping[str, str]
    ) -> None:
        self._address = repository.removeprefix("git+")
        self._base = f"refs/heads/{branch}" if branch else "HEAD"
        self._branch = branch_of(session_id)
        self._own = f"refs/heads/{self._branch}"
        named = "\0".join((repository, branch, session_id)).encode("utf-8", "surrogatepass")
        self.key = hashlib.sha256(named).hexdigest()[:24]
        clone = hashlib.sha256(repository.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        self._clone = os.path.join(place, "repositories", clone)
        self._note = os.path.join(self._clone, f"zot-{self.key}")
        self.tree = os.path.join(place, "workspaces", self.key)
        self._processes = processes
        kept = {
            name: value
            for name, value in env.items()
            if name not in SECRET_NAMES and (not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES))
        }
        self._env = {**kept, **_ENVIRONMENT}

    # Before a run.

    async def prepare(self) -> None:
        """Check the newest state of the branch out, unless it is there. Raise UserError."""
        await self._create_clone()
        tips = await self._tips()
        known, tip = self._known(), tips.get(self._own, "")
        if known is not None and known.tip == tip and self._is_there(self.tree):
            return  # With the ignored files, and with what a run that was cut off has left.
        commit = await self._fetched(self._own if tip else self._base) if tip or self._base in tips else ""
        if not commit and self._base != "HEAD":
            raise UserError(f"{printable(self._address)} has no branch {self._base.removeprefix('refs/heads/')}")
        fresh = f"{self.tree}.new"
        for old in (fresh, self.tree):
            await asyncio.to_thread(shutil.rmtree, old, ignore_errors=True)
        make_directory(os.path.dirname(self.tree))
        if commit:
            await self._git("update-ref", self._own, commit)
            options = ("--quiet", "--template=", "--single-branch", "--no-tags", "--branch", self._branch)
            await self._git("clone", *options, "--", f"file://{self._clone}", fresh)
            # Nothing of the model is in it yet. It must not push to zot's clone.
            await self._git("-C", fresh, "remote", "remove", "origin")
        else:
            await self._git("init", "--quiet", "--template=", "--", fresh)
        os.chmod(fresh, 0o700)
        os.rename(fresh, self.tree)
        self._remember(_Checkout(commit, tip))

    async def _create_clone(self) -> None:
        if not self._is_there(os.path.join(self._clone, "objects")):
            make_directory(self._clone)
            await self._git("init", "--quiet", "--bare", "--template=", "--", self._clone)

    async def _tips(self) -> dict[str, str]:
        """Return the commits of the session's branch and of the one that it begins with, as far as they exist."""
        said = await self._git("ls-remote", "--quiet", "--", self._address, self._own, self._base)
        return {ref: commit for commit, ref in _TIP.findall(said)}

    async def _fetched(self, ref: str) -> str:
        """Fetch a branch into zot's clone; return its commit."""
        there = f"refs/zot/{self.key}"
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
        await self._git("fetch", *options, "--", self._address, f"+{ref}:{there}")
        return (await self._git("rev-parse", "--verify", f"{there}^{{commit}}")).strip()

    # After a run.

    async def publish(self) -> None:
        """Commit the files of the checkout and push them. Raise UserError."""
        known = self._known()
        if known is None or not self._is_there(self.tree):
            return
        content = await self._snapshot(known.commit)
        before = await self._git("rev-parse", "--verify", f"{known.commit}^{{tree}}") if known.commit else ""
        if content == before.strip():
            return
        parent = ("-p", known.commit) if known.commit else ()
        words = f"Run of session {self._branch.removeprefix('zot/')}"
        commit = (await self._git("commit-tree", content, *parent, "-m", words)).strip()
        await self._push(commit)
        self._remember(_Checkout(commit, commit))

    async def _snapshot(self, parent: str) -> str:
        """Return the tree of the checkout's files. Submodules stay as they are: git would run in them."""
        index = {"GIT_INDEX_FILE": f"{self._note}.index"}
        await self._git("read-tree", parent or "--empty", **index)
        links = await self._links(index)
        if links:
            await self._git("update-index", "--force-remove", "--", *links, **index)
        try:
            await self._git("add", "--all", "--ignore-errors", cwd=self.tree, GIT_WORK_TREE=self.tree, **index)
        except UserError as problem:  # Such as a file that cannot be read, or a repository without a commit.
            log.warning("%s: not all files are pushed: %s", self._branch, problem)
        if added := await self._links(index):
            await self._git("update-index", "--force-remove", "--", *added, **index)
        for path, commit in links.items():
            with suppress(UserError):  # Files have replaced it.
                await self._git("update-index", "--add", "--cacheinfo", f"{_SUBMODULE},{commit},{path}", **index)
        return (await self._git("write-tree", **index)).strip()

    async def _links(self, index: Mapping[str, str]) -> dict[str, str]:
        """Return the submodules in the index, with their commits."""
        listed = await self._git("ls-files", "--stage", "-z", **index)
        found = (entry.partition("\t") for entry in listed.split("\0") if entry.startswith(f"{_SUBMODULE} "))
        return {path: about.split()[1] for about, _, path in found}

    async def _push(self, commit: str) -> None:
        for pause_s in _PAUSES_S:
            try:
                await self._push_to(self._branch, commit)
            except UserError as problem:
                if "rejected" in str(problem):
                    aside = f"{self._branch}-{commit[:8]}"
                    log.warning("%s has newer commits: the files are pushed to %s instead", self._branch, aside)
                    await self._push_to(aside, commit)
                    return
                log.warning("%s could not be pushed, and will be tried again: %s", self._branch, problem)
                await asyncio.sleep(pause_s)
            else:
                return
        await self._push_to(self._branch, commit)

    async def _push_to(self, branch: str, commit: str) -> None:
        await self._git("push", "--quiet", "--", self._address, f"{commit}:refs/heads/{branch}")

    def _is_there(self, directory: str) -> bool:
        return os.path.isdir(directory)

    def _known(self) -> _Checkout | None:
        try:
            with open(self._note, "rb") as file:
                return msgspec.json.decode(file.read(), type=thread_safe_type(_Checkout))
        except (OSError, msgspec.MsgspecError):
            return None

    def _remember(self, checkout: _Checkout) -> None:
        with open(f"{self._note}.new", "wb") as file:
            file.write(msgspec.json.encode(checkout))
        os.replace(f"{self._note}.new", self._note)

    async def _git(self, *words: str, cwd: str = "/", **variables: str) -> str:
        """Run git with zot's clone as its repository; return its output. Raise UserError."""
        settings = [word for setting in _SETTINGS for word in ("-c", setting)]
        bare = () if words[0] in ("clone", "init", "-C") else ("--git-dir", self._clone)
        status, said = await run_program(
            ["git", *settings, *bare, *words],
            cwd=cwd,
            env={**self._env, **variables},
            processes=self._processes,
            within_s=_DEADLINE_S,
            max_bytes=_MAX_LISTED_BYTES,
        )
        if status:
            lines = [line.strip().removeprefix("fatal: ") for line in said.split("\n") if line.strip()]
            verb = next(word for word in words if not word.startswith("-"))
            raise UserError(f"git {verb}: {printable('; '.join(lines[-3:]))[:300] or f'exit status {status}'}")
        return said
