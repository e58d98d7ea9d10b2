"""Shell commands as a policy judges them: their words, patterns over words, and vetted sets of read-only commands.

Words are split as a shell does, but nothing is expanded: a command in which the shell would replace, repeat or redirect
anything has no words that could be judged. The sets name exact subcommands and options. Options that write, execute or
read outside the working directory are not among them, nor are abbreviations of long options.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

#: With one of these anywhere, a command may do more than its words show.
_MAGIC: Final = frozenset(";&|<>$()`\n")
#: Unquoted, a shell makes other words of these; at the beginning of a word, of those in the second set.
_EXPANDED: Final = frozenset("*?[]{}")
_EXPANDED_FIRST: Final = frozenset("~#")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*\+?=")
#: A placeholder for which git runs gpg, also after a sign that adds or removes a line feed or blank.
_SIGNATURE: Final = re.compile(r"%[-+ ]*G")


def plain_words(command: str) -> list[str] | None:
    """Return the words of a simple command; None if a shell would do more than split it and remove quotes."""
    if _MAGIC & set(command) or not command.replace("\t", " ").isprintable():
        return None
    words: list[str] = []
    word: list[str] = []
    is_word = False  # Also true of an empty word in quotes.
    quote, before, letters = "", " ", iter(command)
    for one in letters:
        if quote:
            if one == quote:
                quote = ""
            elif one == "\\" and quote == '"':
                after = next(letters, "")
                word += [after] if after in ('"', "\\") else [one, after]
                if not after:
                    return None
            else:
                word.append(one)
        elif one in " \t":
            if is_word:
                words.append("".join(word))
            word, is_word = [], False
        elif one in _EXPANDED or (one in _EXPANDED_FIRST and not is_word) or (one == "~" and before in "=:"):
            return None
        else:
            is_word = True
            if one in "'\"":
                quote = one
            elif one != "\\":
                word.append(one)
            elif after := next(letters, ""):
                word.append(after)
            else:
                return None
        before = one
    if quote:
        return None
    if is_word:
        words.append("".join(word))
    return words if words and words[0] != "!" else None


def matches_words(pattern: str, words: Sequence[str]) -> bool:
    """True if ``pattern`` allows a command. Its words are globs, each for one word of the command.

    A wildcard matches no option: ``*`` as the last word matches one or more words that do not begin with ``-``, ``**``
    any words. An assignment before the command must be in the pattern as it is.
    """
    return _matches(pattern.split(), words, is_first=True)


def _matches(pattern: Sequence[str], words: Sequence[str], *, is_first: bool) -> bool:
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        return not is_first and any(_matches(rest, words[at:], is_first=False) for at in range(len(words) + 1))
    if not words:
        return False
    word = words[0]
    is_assignment = is_first and _ASSIGNMENT.match(word) is not None
    if is_assignment:
        return word == first and _matches(rest, words[1:], is_first=True)
    if not _matches_word(first, word):
        return False
    if first == "*" and not rest:
        return all(_matches_word("*", one) for one in words)
    return _matches(rest, words[1:], is_first=False)


def _matches_word(pattern: str, word: str) -> bool:
    if word.startswith("-") and not pattern.startswith("-"):
        return False
    return fnmatchcase(word, pattern)


class _Program(msgspec.Struct, frozen=True):
    """Form that a command of a set must have.

    ``flags`` are exact options, ``starts`` the beginnings of options with an attached value, ``letters`` those that may
    be joined after one dash, ``valued`` options whose value is the next word, ``numbered`` letters with a number;
    ``counted`` allows a number alone, such as ``-5``. Other words are operands, if ``operands`` allows any; each must
    be a path inside the working directory, or no path at all. With ``pattern``, the first one is a pattern, unless one
    of ``unpatterned`` is given.
    """

    flags: frozenset[str] = frozenset()
    starts: tuple[str, ...] = ()
    letters: str = ""
    valued: frozenset[str] = frozenset()
    numbered: str = ""
    counted: bool = False
    operands: bool = True
    pattern: bool = False
    unpatterned: frozenset[str] = frozenset()

    def vets(self, words: Sequence[str], cwd: str) -> bool:
        """True if these words after the program's name are among the vetted ones."""
        operands: list[str] = []
        queue = [*reversed(words)]
        is_patterned = self.pattern and not any(word in self.unpatterned for word in words)
        while queue:
            word = queue.pop()
            if word == "--":
                operands += reversed(queue)
                break
            if word in self.valued:
                if not queue:
                    return False
                queue.pop()
            elif word.startswith("-") and word != "-":
                if not self._vets_option(word):
                    return False
            else:
                operands.append(word)
        if operands and not self.operands:
            return False
        return all(is_inside(one, cwd) for one in operands[1 if is_patterned else 0 :])

    def _vets_option(self, word: str) -> bool:
        if word in self.flags or word.startswith(self.starts or ("\0",)):
            return not _SIGNATURE.search(word)
        if self.letters and re.fullmatch(f"-[{self.letters}]+", word):
            return True
        if self.counted and re.fullmatch(r"-\d+", word):
            return True
        return bool(self.numbered and re.fullmatch(rf"-[{self.numbered}]\d+", word))


def is_inside(word: str, cwd: str) -> bool:
    """True if ``word``, taken as a path, is in the working directory, with all links resolved."""
    if os.path.isabs(word) or ".." in word.split("/"):
        return False
    here = os.path.realpath(cwd)
    real = os.path.realpath(os.path.join(here, word))
    return real == here or real.startswith(os.path.join(here, ""))


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHOWS: Final = _flags(
    "--stat --shortstat --numstat --summary --name-only --name-status --patch -p -u --no-patch -s --raw -w -b -M -C -z"
    " --word-diff --minimal --patience --histogram --full-index --no-ext-diff --no-textconv --no-renames --find-renames"
    " --check --exit-code --quiet -q --no-prefix --no-color --ignore-all-space --ignore-space-change -R -a --text"
)
_SHOWS_WITH: Final = ("--unified=", "--diff-filter=", "--abbrev=", "--color=", "--stat=", "--word-diff=")
_WALKS: Final = _SHOWS | _flags(
    "--oneline --graph --all --decorate --no-decorate --follow --reverse --merges --no-merges --first-parent"
    " --abbrev-commit --branches --tags --remotes -i --date-order --topo-order --no-show-signature"
)
_WALKS_WITH: Final = (
    *_SHOWS_WITH, "--max-count=", "--skip=", "--since=", "--after=", "--until=", "--before=", "--author=",
    "--committer=", "--grep=", "--format=", "--pretty=", "--date=", "--decorate=",
)  # fmt: skip
_LOG: Final = _Program(_WALKS, _WALKS_WITH, valued=_flags("-n -S -G"), numbered="nU", counted=True)

#: Subcommands of git. Given the vetted configuration of `is_tame_repository`, none runs a command. None writes: bash
#: keeps `status` and `diff` from refreshing the times of files in the index.
_GIT: Final[Mapping[str, _Program]] = {
    "status": _Program(
        _flags("-s --short -b --branch --porcelain --long -z --ignored -u -uno -unormal -uall --untracked-files"),
        ("--porcelain=", "--untracked-files=", "--ignored="),
        letters="sbz",
    ),
    "log": _LOG,
    "show": _LOG,
    "diff": _Program(
        _SHOWS | _flags("--cached --staged --merge-base"), _SHOWS_WITH, valued=_flags("-S -G"), numbered="U",
    ),
    "blame": _Program(
        _flags("-w -s -e -l -p --porcelain --line-porcelain -M -C --show-email"), ("--date=", "--abbrev="),
        valued=_flags("-L"),
    ),
    "branch": _Program(
        _flags("-a -r -v -vv -av -avv -rv --all --remotes --list --show-current --verbose --no-color --merged"
               " --no-merged"),
        operands=False,
    ),
    "tag": _Program(_flags("-l --list -n --no-color"), ("--sort=",), operands=False),
    "remote": _Program(_flags("-v --verbose"), operands=False),
    "rev-parse": _Program(
        _flags("--show-toplevel --show-prefix --show-cdup --git-dir --absolute-git-dir --abbrev-ref --short --verify"
               " --is-inside-work-tree --symbolic-full-name"),
    ),
    "ls-files": _Program(
        _flags("--cached --modified --others --deleted --stage --unmerged --ignored --exclude-standard --full-name"
               " --error-unmatch"),
        letters="cmodsuizt",
    ),
    "ls-tree": _Program(_flags("--name-only --name-status --full-name --full-tree --long"), letters="rtdlz"),
    "cat-file": _Program(_flags("-p -t -s -e")),
    "describe": _Program(_flags("--tags --all --always --long --contains"), ("--abbrev=",)),
    "grep": _Program(
        _flags("--cached --heading --break --count --files-with-matches --line-number --ignore-case --word-regexp"
               " --no-color --column"),
        ("--color=", "--max-depth="),
        letters="niwlLcvEFGPhHI", numbered="ABC", valued=_flags("-e -A -B -C"), pattern=True, unpatterned=_flags("-e"),
    ),
}  # fmt: skip

_GREP: Final = _Program(
    _flags("--recursive --ignore-case --line-number --files-with-matches --files-without-match --count --invert-match"
           " --word-regexp --extended-regexp --fixed-strings --perl-regexp --only-matching --no-filename"
           " --with-filename --no-messages --text"),
    ("--include=", "--exclude=", "--exclude-dir=", "--color=", "--context=", "--max-count=", "--after-context=",
     "--before-context="),
    letters="rniIlLcvwxEFPohHsqazZ", numbered="ABCm", valued=_flags("-e -A -B -C -m"), pattern=True,
    unpatterned=_flags("-e"),
)  # fmt: skip
_RG: Final = _Program(
    _flags("--line-number --no-line-number --ignore-case --smart-case --case-sensitive --word-regexp --files"
           " --files-with-matches --files-without-match --count --count-matches --invert-match --fixed-strings"
           " --multiline --only-matching --hidden --no-ignore --no-heading --heading --json --stats --type-list"
           " --column --no-filename --with-filename --no-messages --sort=path --trim"),
    ("--glob=", "--iglob=", "--type=", "--type-not=", "--color=", "--max-depth=", "--max-count=", "--context=",
     "--after-context=", "--before-context="),
    letters="niSswxlcvFUoHINu", numbered="ABCm", valued=_flags("-e -g -t -T -A -B -C -m"), pattern=True,
    unpatterned=_flags("-e --files --type-list"),
)  # fmt: skip
_FIND_ALONE: Final = _flags(
    "-print -print0 -ls -empty -not ! -o -or -a -and -prune -xdev -mount -depth -readable -writable -executable"
    " -daystart"
)
_FIND_VALUED: Final = _flags(
    "-name -iname -path -ipath -wholename -regex -iregex -type -maxdepth -mindepth -size -mtime -atime -ctime -mmin"
    " -amin -cmin -perm -user -group -links"
)
_LISTS: Final[Mapping[str, _Program]] = {
    "ls": _Program(
        _flags("--all --almost-all --human-readable --recursive --reverse --size --classify --directory"),
        ("--color=", "--sort=", "--time="), letters="alhrtSR1dFpiAGnogsXuc",
    ),
    "pwd": _Program(operands=False),
    "tree": _Program(_flags("--dirsfirst --noreport"), letters="adfishpDF", valued=_flags("-L -I -P")),
    "du": _Program(_flags("--summarize --human-readable --all --total --bytes"), ("--max-depth=",), letters="shackmb",
                   valued=_flags("-d")),
    "stat": _Program(_flags("-t --terse"), ("--format=", "--printf="), valued=_flags("-c")),
    "wc": _Program(_flags("--lines --words --bytes --chars"), letters="lwcmL"),
}  # fmt: skip

#: The sets that a policy can name, as in `bash:@git-read=allow`.
COMMAND_SETS: Final = ("git-read", "search", "list")


def in_command_set(name: str, words: Sequence[str], cwd: str) -> bool:
    """True if a command in ``cwd`` is one of a set: it reads inside ``cwd``, and neither writes nor executes."""
    program, rest = words[0], words[1:]
    match name:
        case "git-read" if program == "git":
            return _vets_git(rest, cwd)
        case "search" if program == "find":
            return _vets_find(rest, cwd)
        case "search" if program in ("grep", "rg"):
            return (_GREP if program == "grep" else _RG).vets(rest, cwd)
        case "list" if program in _LISTS:
            return _LISTS[program].vets(rest, cwd)
        case _:
            return False


def _vets_git(words: Sequence[str], cwd: str) -> bool:
    if words[:1] == ["--no-pager"]:
        words = words[1:]
    if not words:
        return False
    vetted = _GIT.get(words[0])
    is_vetted = [*words] == ["stash", "list"] if vetted is None else vetted.vets(words[1:], cwd)
    if any(word.startswith(":") for word in words):
        return False  # Such as `:/`, a path from the top of the repository.
    reads_tree = words[0] == "grep" and "--cached" not in words
    return is_vetted and is_tame_repository(cwd, reads_tree=reads_tree)


def _vets_find(words: Sequence[str], cwd: str) -> bool:
    at = next((at for at, word in enumerate(words) if word.startswith("-") or word == "!"), len(words))
    if not all(is_inside(one, cwd) for one in words[:at]):
        return False
    rest = iter(words[at:])
    for word in rest:
        if word in _FIND_ALONE:
            continue
        value = next(rest, None)
        if value is None or not (word in _FIND_VALUED or (word == "-newer" and is_inside(value, cwd))):
            return False
    return True


# A repository's own configuration can make git run programs: fsmonitor, filters, textconv, external diffs, gpg, hooks,
# and commands that fetch missing objects. A list of those would never be complete, so only keys known to be harmless
# are accepted.

_MAX_CONFIG_BYTES: Final = 1 << 20
_MAX_INDEX_BYTES: Final = 64 << 20
_SECTION: Final = re.compile(r'\[[ \t]*([A-Za-z0-9.-]+)[ \t]*(?:"(?:[^"\\\n]|\\["\\])*")?[ \t]*\]')
_KEY: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:=[^\n]*)?")
_HARMLESS: Final[Mapping[str, Collection[str]]] = {
    "core": _flags("repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks"
                   " autocrlf safecrlf eol quotepath abbrev compression"),
    "extensions": _flags("objectformat"),
    "remote": _flags("url fetch pushurl tagopt prune"),
    "branch": _flags("remote merge rebase description pushremote"),
    "user": _flags("name email"),
    "author": _flags("name email"),
    "committer": _flags("name email"),
    "init": _flags("defaultbranch"),
    "pull": _flags("rebase ff"),
    "push": _flags("default autosetupremote"),
    "merge": _flags("conflictstyle ff"),
    "rebase": _flags("autosquash autostash"),
    "fetch": _flags("prune prunetags"),
    "color": _flags("ui"),
    "gc": _flags("auto"),
    "lfs": _flags("repositoryformatversion"),
}  # fmt: skip
#: A gitlink in the index: git runs itself in the submodule, with the submodule's configuration.
_GITLINK: Final = b"\x00\x00\xe0\x00"


def is_tame_repository(cwd: str, *, reads_tree: bool = False) -> bool:
    """True if git in ``cwd`` finds no repository, or one whose configuration runs nothing.

    Reads files only. False for everything unusual: a bare repository, a submodule, an included file, an unknown key.
    With ``reads_tree``, also if a command that reads the files in the index would follow a link to them.
    """
    directory = os.path.realpath(cwd)
    while True:
        git = os.path.join(directory, ".git")
        if os.path.lexists(git):
            break
        if _looks_bare(directory):
            return False
        above = os.path.dirname(directory)
        if above == directory:
            return True
        directory = above
    try:
        return _is_tame(git, directory, reads_tree=reads_tree)
    except OSError:
        return False


def _looks_bare(directory: str) -> bool:
    """True for what git may take for a bare repository, which a clone can bring along as files.

    ``commondir`` says where the other parts are.
    """
    there = {
        name for name in ("HEAD", "objects", "refs", "commondir") if os.path.lexists(os.path.join(directory, name))
    }
    return "HEAD" in there and ("commondir" in there or {"objects", "refs"} <= there)


def _is_tame(git: str, directory: str, *, reads_tree: bool) -> bool:
    if not os.path.isdir(git):
        line = _text(git, 4096).removesuffix("\n")
        if not line.startswith("gitdir: ") or "\n" in line:
            return False
        git = os.path.join(directory, line.removeprefix("gitdir: "))
    common = git
    if os.path.lexists(link := os.path.join(git, "commondir")):
        named = _text(link, 4096).rstrip("\n")
        if named != named.strip() or "\n" in named:
            return False  # git takes blanks for a part of the name.
        common = os.path.join(git, named)
    if not _is_own(git, common, directory):
        return False
    # git ignores a directory that lacks one of these, and looks further up.
    if not (
        os.path.lexists(os.path.join(git, "HEAD"))
        and all(os.path.isdir(os.path.join(common, name)) for name in ("objects", "refs"))
    ):
        return False
    if any(os.path.lexists(os.path.join(one, "config.worktree")) for one in (git, common)):
        return False
    if os.path.lexists(
        os.path.join(common, "hooks", "post-index-change")
    ):  # Run when `git status` refreshes the index.
        return False
    if any(name.startswith("sharedindex.") for name in os.listdir(git)):
        return False
    config = _text(os.path.join(common, "config"), _MAX_CONFIG_BYTES)
    if os.path.lexists(path := os.path.join(git, "index")):
        index = _bytes(path, _MAX_INDEX_BYTES)
        if _GITLINK in index:
            return False
        if reads_tree and ("objectformat" in config.lower() or _has_linked_directory(index, directory)):
            return False
    return _is_harmless(config)


def _is_own(git: str, common: str, directory: str) -> bool:
    """True if the objects that git reads belong to this working tree: an archive can bring links to another repository.

    Outside of the working tree, only the repository of a worktree is accepted, which names the worktree itself.
    """
    top, place, shared = map(os.path.realpath, (directory, git, common))
    if not place.startswith(os.path.join(top, "")):
        named = _text(os.path.join(place, "gitdir"), 4096).removesuffix("\n")
        if os.path.realpath(named) != os.path.join(top, ".git") or os.path.islink(os.path.join(top, ".git")):
            return False
        if os.path.dirname(os.path.dirname(place)) != shared:
            return False
    elif shared != place:
        return False
    objects = os.path.join(shared, "objects")
    if any(os.path.lexists(os.path.join(objects, "info", name)) for name in ("alternates", "http-alternates")):
        return False
    parts = [shared, objects, *(os.path.join(objects, name) for name in ("info", "pack")), os.path.join(shared, "refs")]
    return not any(_has_links(part) for part in parts)


def _has_links(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(entry.is_symlink() for entry in entries)
    except FileNotFoundError:
        return False


def _has_linked_directory(index: bytes, directory: str) -> bool:
    """True if a directory of the index is a link in the working tree, or if the index is not one with SHA-1 hashes."""
    if index[:4] != b"DIRC" or index[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        return True
    seen, at, top = {b""}, 12, os.fsencode(directory)
    for _ in range(int.from_bytes(index[8:12], "big")):
        # Times, numbers and a hash of fixed size, flags of which one says that more follow, and the path.
        start = at + (64 if int.from_bytes(index[at + 60 : at + 62], "big") & 0x4000 else 62)
        end = index.find(b"\0", start)
        if end < 0:
            return True
        above = index[start:end].rpartition(b"/")[0]
        while above not in seen:
            seen.add(above)
            if os.path.islink(os.path.join(top, above)):
                return True
            above = above.rpartition(b"/")[0]
        at += (end - at + 8) // 8 * 8
    return False


def _is_harmless(config: str) -> bool:
    """True if a configuration has harmless keys only, and nothing that could be read in two ways."""
    known: Collection[str] = ()
    for line in config.split("\n"):
        text = line.strip(" \t")
        if not text or text[0] in "#;":
            continue
        if section := _SECTION.fullmatch(text):
            known = _HARMLESS.get(section[1].lower(), ())
        elif not (key := _KEY.fullmatch(text)) or key[1].lower() not in known or text.endswith("\\"):
            return False
    return True


def _text(path: str, limit: int) -> str:
    """Return a file. Raise OSError, also if it is not UTF-8 or has control characters that git could take otherwise."""
    try:
        text = _bytes(path, limit).decode()
    except UnicodeDecodeError:
        raise OSError(0, "not UTF-8", path) from None
    if any(one < " " and one not in "\n\t" for one in text):
        raise OSError(0, "control characters", path)
    return text


def _bytes(path: str, limit: int) -> bytes:
    """Return a regular file of at most ``limit`` bytes. Raise OSError for anything else, without waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "not a regular file", path)
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(0, "too long", path)
    return data


#: Programs whose operands are commands, scripts or files to write, with what they can do.
_EXECUTES: Final = _flags(
    "sh bash dash zsh fish ksh env xargs nohup setsid timeout time nice sudo doas su ssh python python3 node deno bun"
    " perl ruby php lua awk gawk mawk sed ed vi vim emacs make cmake ninja npm npx yarn pnpm pip pip3 uv uvx cargo go"
    " docker podman kubectl eval exec source . command builtin parallel watch strace gdb systemd-run at crontab"
)
_WRITES: Final = _flags(
    "cp mv rm rmdir mkdir ln chmod chown dd tee tar zip unzip rsync scp install truncate touch patch"
)


def risk_of(pattern: str) -> str:
    """Return what an allow rule for this pattern allows beyond reading; "" if nothing is known."""
    words = pattern.split()
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    if not words or pattern.startswith("@"):
        return ""
    program, rest = os.path.basename(words[0]), words[1:]
    has_wildcard = any(set(word) & set("*?[") for word in rest)
    if set(words[0]) & set("*?["):
        return "it allows any program"
    if "**" in rest or any(word.startswith("-") and set(word) & set("*?[") for word in rest):
        return "it allows options that write files or run programs; name the options, or use a set such as @git-read"
    if program in _EXECUTES and (has_wildcard or not rest):
        return f"{program} runs what its arguments say"
    if program in _WRITES and has_wildcard:
        return f"{program} changes files"
    if program == "git" and rest and set(rest[0]) & set("*?["):
        return "it allows every subcommand of git, also those that write, run hooks or are aliases; use @git-read"
    if program == "git":
        return "the configuration of a repository can make git run programs; @git-read checks it"
    if program == "find" and any(word in ("-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint") for word in rest):
        return "find runs programs or changes files with these options"
    return ""
