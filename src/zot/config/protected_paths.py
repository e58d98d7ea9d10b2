"""Protected paths: files in a working directory that other programs run or obey without being asked.

A locked run must not write them: the code would run later, outside of the lock, when a person uses git, opens an editor
or a shell. The documentation has the same list, see docs/reference/tools.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

#: By the program that reads them. Relative to the working directory; file tools refuse them at any depth.
PROTECTED: Final[dict[str, tuple[str, ...]]] = {
    # `commondir` moves the configuration of a repository elsewhere; the others have one of their own.
    "git": (
        ".git/config", ".git/config.worktree", ".git/commondir", ".git/hooks", ".git/modules", ".git/worktrees",
        ".gitconfig", ".config/git", ".husky", ".pre-commit-config.yaml", ".lfsconfig",
    ),
    "other version control": (".hg/hgrc", ".hg/hgrc-not-shared", ".hg/sharedpath", ".jj/repo/config.toml"),
    "zot and other agents": (
        ".zot", ".claude", ".codex", ".cursor", ".gemini", ".opencode", ".mcp.json", ".aider.conf.yml", "opencode.json",
        ".continue", ".kiro", ".qwen", ".roo", ".windsurf", ".crush.json",
    ),
    "editors": (
        ".vscode", ".idea", ".zed", ".fleet", ".devcontainer", ".vimrc", ".nvimrc", ".nvim.lua", ".exrc",
        ".dir-locals.el", ".emacs", ".emacs.d", ".vim", ".config/nvim", ".helix",
    ),
    "shells and sessions": (
        ".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile", ".zshrc", ".zshenv",
        ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".login", ".inputrc", ".config/fish",
        ".envrc", ".direnv", ".xprofile", ".xinitrc", ".xsession", ".pam_environment", ".config/autostart",
        ".config/systemd", ".local/share/applications", "Library/LaunchAgents",
    ),
    "other programs": (
        ".ssh", ".netrc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pypirc", ".gdbinit", ".lldbinit", ".pdbrc",
        ".tmux.conf", ".screenrc", ".sqliterc", ".Rprofile", ".Renviron", ".irbrc", ".pryrc", ".octaverc", ".cargo",
        "mise.toml", ".mise.toml",
    ),
}  # fmt: skip
#: Only in the working directory itself: with this file, git takes any directory for a repository.
_AT_THE_TOP: Final = ("HEAD",)
#: Characters that some file systems of macOS leave out when they compare names.
_IGNORED: Final = dict.fromkeys((*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF))
#: Refused to file tools as a whole, since no model needs to write there. A command runs git, so for it a directory of
#: this name is protected in part. A file of this name, or a new directory, would lead git to any configuration.
REPOSITORY: Final = ".git"


#: The protected paths of every repository.
IN_REPOSITORY: Final = tuple(path for path in PROTECTED["git"] if path.startswith(f"{REPOSITORY}/"))


#: The protected paths that count in every directory, by their last name in lower case. Those of repositories are apart.
IN_DIRECTORIES: Final[dict[str, str]] = {
    path.rpartition("/")[2].casefold(): path.casefold()
    for paths in PROTECTED.values()
    for path in paths
    if path not in IN_REPOSITORY
}


def protected_paths(more: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the protected paths relative to the working directory; ``more`` are the user's.

    REPOSITORY comes first: if it is a directory, only the paths in it are meant.
    """
    known = (path for paths in PROTECTED.values() for path in paths)
    return (REPOSITORY, *known, *_AT_THE_TOP, *(path.strip("/") for path in more if path.strip("/")))


def protection_of(path: str, more: Sequence[str] = ()) -> str:
    """Return the protected path that contains ``path``, which is relative to the working directory; "" if none does.

    Upper and lower case count as equal, and some characters do not count, as on some file systems. The user's and those
    at the top count at the top only.
    """
    names = path.translate(_IGNORED).casefold().split("/")
    for one in (*_AT_THE_TOP, *more):
        wanted = one.strip("/").casefold().split("/")
        if names[: len(wanted)] == wanted:
            return one
    for one in (REPOSITORY, *(path for paths in PROTECTED.values() for path in paths)):
        wanted = one.casefold().split("/")
        if any(names[at : at + len(wanted)] == wanted for at in range(len(names))):
            return one
    return ""
