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
import stat
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

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

#: Longest time for a command of git that needs the network, and for one that only reads and writes files here.
_DEADLINE_S = 600.0
_LOCAL_S = 120.0
_MAX_OUTPUT_BYTES = 64 * 1024
#: Limits of what is pushed: the list of names, one file, and all files.
_MAX_LISTED_BYTES = 64 << 20
_MAX_FILE_BYTES = 100 << 20
_MAX_CONTENT_BYTES = 4 << 30
#: The pauses between attempts to push.
_PAUSES_S = (1.0, 2.0, 4.0)
_PLAIN_ID = re.compile(r"(?!.*(?:\.\.|\.lock$|\.$))[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TIP = re.compile(r"^([0-9a-f]{40,64})\t(\S+)$", re.M)
_SUBMODULE = b"160000"
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
#: Without the operator's settings, which may name filters: attributes of the repository would run them.
_WITHOUT_SETTINGS = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_ATTR_NOSYSTEM": "1"}
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
_LOCAL_SETTINGS = ("core.attributesFile=/dev/null", "core.excludesFile=/dev/null")
#: Files are pushed as they are, whatever the attributes of the repository say.
_ATTRIBUTES = b"* -text -ident -filter !eol !working-tree-encoding\n"
#: git with a file as its input, or for its output: its errors stay apart.
_WITH_INPUT = ("/bin/sh", "-c", 'exec "$@" <"$ZOT_FILE"', "sh")
_WITH_OUTPUT = ("/bin/sh", "-c", 'exec "$@" >"$ZOT_FILE"', "sh")


class _Checkout(msgspec.Struct, frozen=True):
    """The newest commit of a checkout, and the tip of the session's branch when both were last compared; "" for none.

    The commit ``is_pushed`` unless the repository could not be reached.
    """

    commit: str = ""
    tip: str = ""
    is_pushed: bool = True


class _Content(msgspec.Struct, frozen=True):
    """Names below a checkout: files to push, those that are gone, and how many are kept as they were."""

    files: Sequence[bytes]
    gone: Sequence[bytes]
    skipped: int


class Workspaces:
    """The checkouts of one machine's sessions, in the data directory. The same paths are used on all machines."""

    def __init__(self, parts: DaemonParts, *, checks_out: bool) -> None:
        """A gateway never ``checks_out``: its sessions run no tools."""
        self._parts = parts
        self._checks_out = checks_out
        #: One for each checkout, and for each clone while it is made.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

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
        async with self._lock(one.key):
            if self._checks_out:
                async with self._lock(one.clone):
                    await one.create_clone()
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
        async with self._lock(one.key):
            try:
                await one.publish()
            except Exception as problem:  # The run itself has ended well.
                why = explained(problem, log, "a push")
                log.warning("session %r: its files were not pushed, and stay on this machine: %s", session_id, why)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

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
    # No plain id begins like this, so no session is named like the branch of another.
    return f"zot/_{hashlib.sha256(session_id.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


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
        self.clone = os.path.join(place, "repositories", clone)
        self._note = os.path.join(self.clone, f"zot-{self.key}")
        self.tree = os.path.join(place, "workspaces", self.key)
        self._processes = processes
        kept = {
            name: value
            for name, value in env.items()
            if name not in SECRET_NAMES and (not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES))
        }
        self._env = {**kept, **_ENVIRONMENT}

    # Before a run.

    async def create_clone(self) -> None:
        """Create zot's own clone, unless it is there. Not safe to call twice at a time. Raise UserError."""
        if self._is_there(os.path.join(self.clone, "info", "attributes")):
            return
        make_directory(self.clone)
        await self._git("init", "--quiet", "--bare", "--template=", "--", self.clone)
        _write_attributes(self.clone)

    async def prepare(self) -> None:
        """Check the newest state of the branch out, unless it is there. Raise UserError."""
        tips = await self._tips()
        known, tip = self._known(), tips.get(self._own, "")
        if known is not None and self._is_there(self.tree):
            if known.tip == tip:
                return  # With the ignored files, and with what a run that was cut off has left.
            if known.commit == tip:  # It was pushed, but that was not noted.
                self._remember(_Checkout(tip, tip))
                return
        if known is not None and not known.is_pushed:
            await self._push_aside(known.commit)
        commit = await self._fetched(self._own if tip else self._base) if tip or self._base in tips else ""
        if not commit and self._base != "HEAD":
            raise UserError(f"{printable(self._address)} has no branch {self._base.removeprefix('refs/heads/')}")
        fresh = f"{self.tree}.new"
        for old in (fresh, self.tree):
            await asyncio.to_thread(_remove, old)
        make_directory(os.path.dirname(self.tree))
        if commit:
            await self._git("--git-dir", self.clone, "update-ref", self._own, commit)
            options = ("--quiet", "--template=", "--single-branch", "--no-tags", "--no-checkout")
            await self._git("clone", *options, "--branch", self._branch, "--", f"file://{self.clone}", fresh)
            # Nothing of the model is in its settings yet. It must not push to zot's clone.
            await self._git("-C", fresh, "remote", "remove", "origin")
        else:
            await self._git("init", "--quiet", "--template=", "--", fresh)
        _write_attributes(os.path.join(fresh, ".git"))
        if commit:
            await self._git("-C", fresh, "checkout", "--quiet", self._branch, "--")
        os.chmod(fresh, 0o700)
        os.rename(fresh, self.tree)
        self._remember(_Checkout(commit, tip))

    async def _tips(self) -> dict[str, str]:
        """Return the commits of the session's branch and of the one that it begins with, as far as they exist."""
        said = await self._remote("ls-remote", "--quiet", "--", self._address, self._own, self._base)
        return {ref: commit for commit, ref in _TIP.findall(said)}

    async def _fetched(self, ref: str) -> str:
        """Fetch a branch into zot's clone; return its commit."""
        there = f"refs/zot/{self.key}"
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance")
        await self._remote("fetch", *options, "--", self._address, f"+{ref}:{there}")
        return (await self._local("rev-parse", "--verify", f"{there}^{{commit}}")).strip()

    # After a run.

    async def publish(self) -> None:
        """Commit the files of the checkout and push them. Raise UserError."""
        known = self._known()
        if known is None or not self._is_there(self.tree):
            return
        content = await self._snapshot(known.commit)
        before = await self._local("rev-parse", "--verify", f"{known.commit}^{{tree}}") if known.commit else ""
        if content != before.strip():
            parent = ("-p", known.commit) if known.commit else ()
            words = f"Run of session {self._branch.removeprefix('zot/')}"
            commit = (await self._local("commit-tree", content, *parent, "-m", words)).strip()
            known = _Checkout(commit, known.tip, is_pushed=False)
            self._remember(known)
        if not known.is_pushed:
            await self._push(known)
            self._remember(_Checkout(known.commit, known.commit))

    async def _snapshot(self, parent: str) -> str:
        """Return the tree of the checkout's files. Submodules stay as they are.

        git only lists names there, and reads the files that it is given. It compares nothing: in a submodule, it would
        run itself with the settings that the model has made there.
        """
        index = {"GIT_INDEX_FILE": f"{self._note}.index", "GIT_WORK_TREE": self.tree}
        await self._local("read-tree", parent or "--empty", **index)
        entries = [entry.split(b"\t", 1) for entry in await self._listed("ls-files", "--stage", "-z", **index)]
        links = {path: about.split()[1] for about, path in entries if about.startswith(_SUBMODULE)}
        await self._update_index("--force-remove", names=links, **index)
        others = await self._listed("ls-files", "--others", "--exclude-standard", "-z", **index)
        names = [*(path for _, path in entries if path not in links), *others]
        content = await asyncio.to_thread(_content, self.tree, names)
        if content.skipped:
            log.warning("%s: %d files are too large, special or unreadable: not pushed", self._branch, content.skipped)
        await self._update_index("--force-remove", names=content.gone, **index)
        await self._update_index("--add", "--remove", "--replace", names=content.files, **index)
        above = {name[: match.start()] for name in content.files for match in re.finditer(b"/", name)}
        kept = links.keys() - above - {*content.files}
        lines = [b"%s %s 0\t%s" % (_SUBMODULE, links[path], path) for path in kept]
        await self._update_index("--index-info", names=lines, **index)
        return (await self._local("write-tree", **index)).strip()

    async def _push(self, known: _Checkout) -> None:
        """Push the newest commit: to a branch of its own if the session's has got other commits meanwhile."""
        for pause_s in (*_PAUSES_S, None):
            try:
                await self._push_to(self._branch, known.commit)
            except UserError as problem:
                there = known.tip
                with suppress(UserError):
                    there = (await self._tips()).get(self._own, "")
                if there == known.commit:  # It has arrived, only the answer was lost.
                    return
                if there != known.tip:
                    await self._push_aside(known.commit)
                    return
                if pause_s is None:
                    raise
                log.warning("%s could not be pushed, and will be tried again: %s", self._branch, problem)
                await asyncio.sleep(pause_s)
            else:
                return

    async def _push_aside(self, commit: str) -> None:
        aside = f"{self._branch}-{commit[:8]}"
        log.warning("%s has newer commits: the files are pushed to %s instead", self._branch, aside)
        await self._push_to(aside, commit)

    async def _push_to(self, branch: str, commit: str) -> None:
        await self._remote("push", "--quiet", "--", self._address, f"{commit}:refs/heads/{branch}")

    # The checkout and its note.

    def _is_there(self, path: str) -> bool:
        return os.path.exists(path) and not os.path.islink(path)

    def _known(self) -> _Checkout | None:
        try:
            with open(self._note, "rb") as file:
                return msgspec.json.decode(file.read(), type=thread_safe_type(_Checkout))
        except (OSError, msgspec.MsgspecError):
            return None

    def _remember(self, checkout: _Checkout) -> None:
        _write(f"{self._note}.new", msgspec.json.encode(checkout))
        os.replace(f"{self._note}.new", self._note)

    # git.

    async def _listed(self, *words: str, **variables: str) -> list[bytes]:
        """Return the entries that git lists, as bytes: a name may be no text. Raise UserError."""
        path = f"{self._note}.list"
        await self._git(*self._bare, *words, cwd=self.tree, through=_WITH_OUTPUT, ZOT_FILE=path, **variables)
        return await asyncio.to_thread(_entries, path)

    async def _update_index(self, *options: str, names: Collection[bytes], **variables: str) -> None:
        """Change the index for some names. Raise UserError."""
        if names:
            path = f"{self._note}.names"
            await asyncio.to_thread(_write, path, b"\0".join((*names, b"")))
            how = () if options == ("--index-info",) else ("--stdin",)
            words = ("update-index", "-z", *options, *how)
            await self._git(*self._bare, *words, cwd=self.tree, through=_WITH_INPUT, ZOT_FILE=path, **variables)

    @property
    def _bare(self) -> tuple[str, str]:
        return "--git-dir", self.clone

    async def _local(self, *words: str, **variables: str) -> str:
        """Run git in zot's clone; return its output. Raise UserError."""
        return await self._git(*self._bare, *words, **variables)

    async def _remote(self, *words: str) -> str:
        """Run git in zot's clone with the operator's settings: they have proxies, keys and credential helpers."""
        return await self._run(_SETTINGS, self._bare + words, env=self._env, within_s=_DEADLINE_S)

    async def _git(self, *words: str, cwd: str = "/", through: Sequence[str] = (), **variables: str) -> str:
        """Run git with files of this machine only, without the operator's settings; return its output."""
        env = {**self._env, **_WITHOUT_SETTINGS, **variables}
        settings = (*_SETTINGS, *_LOCAL_SETTINGS)
        return await self._run(settings, words, env=env, within_s=_LOCAL_S, cwd=cwd, through=through)

    async def _run(
        self,
        settings: Sequence[str],
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        within_s: float,
        cwd: str = "/",
        through: Sequence[str] = (),
    ) -> str:
        given = [word for setting in settings for word in ("-c", setting)]
        status, said = await run_program(
            [*through, "git", *given, *words],
            cwd=cwd,
            env=env,
            processes=self._processes,
            within_s=within_s,
            max_bytes=_MAX_OUTPUT_BYTES,
        )
        if status:
            lines = [line.strip().removeprefix("fatal: ") for line in said.split("\n") if line.strip()]
            verb = words[2] if words[0].startswith("-") else words[0]
            raise UserError(f"git {verb}: {printable('; '.join(lines[-3:]))[:300] or f'exit status {status}'}")
        return said


def _content(tree: str, names: Sequence[bytes]) -> _Content:
    """Return what becomes of names in an index: all that `git ls-files` has listed. Raise UserError."""
    files: list[bytes] = []
    gone: list[bytes] = []
    skipped = size = 0
    is_inside: dict[bytes, bool] = {b"": True}
    for name in names:
        if name.endswith(b"/"):  # A repository inside.
            continue
        path = os.path.join(os.fsencode(tree), name)
        try:
            found = os.lstat(path) if _is_inside(tree, os.path.dirname(name), is_inside) else None
        except OSError:
            found = None
        if found is None or stat.S_ISDIR(found.st_mode):
            gone.append(name)
        elif stat.S_ISLNK(found.st_mode):
            files.append(name)
        elif not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_FILE_BYTES or not os.access(path, os.R_OK):
            skipped += 1
        else:
            files.append(name)
            size += found.st_size
    if size > _MAX_CONTENT_BYTES:
        raise UserError(f"the files of the checkout have {size >> 20} MiB, more than can be pushed")
    return _Content(files, gone, skipped)


def _is_inside(tree: str, directory: bytes, known: dict[bytes, bool]) -> bool:
    """Return whether a directory is one, and not below a link."""
    missing: list[bytes] = []
    while directory not in known:
        missing.append(directory)
        directory = os.path.dirname(directory)
    answer = known[directory]
    for one in reversed(missing):
        if answer:
            try:
                answer = stat.S_ISDIR(os.lstat(os.path.join(os.fsencode(tree), one)).st_mode)
            except OSError:
                answer = False
        known[one] = answer
    return answer


def _entries(path: str) -> list[bytes]:
    """Return the entries of a list that git has written. Raise UserError if it is too long."""
    if os.path.getsize(path) > _MAX_LISTED_BYTES:
        raise UserError("the checkout has too many files to push them")
    with open(path, "rb") as file:
        return file.read().split(b"\0")[:-1]


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


def _write_attributes(directory: str) -> None:
    os.makedirs(os.path.join(directory, "info"), exist_ok=True)
    _write(os.path.join(directory, "info", "attributes"), _ATTRIBUTES)


def _remove(directory: str) -> None:
    """Remove a directory, or a link in its place. Raise OSError."""
    if os.path.islink(directory):
        os.unlink(directory)
    elif os.path.exists(directory):
        shutil.rmtree(directory)
