"""What a file keeps when its content is replaced by that of another: owner, mode, extended attributes."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

#: What people and their programs attach to files, and access control lists. The rest belongs to the system.
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")


def keep(old: int | None, about: os.stat_result, new: int) -> list[str]:
    """Give the open file ``new`` the attributes of ``old``, about which the system said ``about``.

    ``old`` is None when it cannot be opened; then it has no attributes that we could see. Return a sentence for
    each thing that could not be kept. A file that got another owner is not set-user-id.
    """
    notes = []
    mode = stat.S_IMODE(about.st_mode)
    if not _keep_owner(about, new):
        notes.append("its owner was {}:{} and is now {}:{}".format(about.st_uid, about.st_gid, *_owner(new)))
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(new, mode)
    if old is not None and (lost := _copy_extended(old, new)):
        notes.append(f"it lost the extended attributes {', '.join(lost)}")
    if about.st_nlink > 1:
        notes.append(f"it had {about.st_nlink - 1} other hard links, which keep the old content")
    return notes


def _keep_owner(about: os.stat_result, new: int) -> bool:
    if _owner(new) == (about.st_uid, about.st_gid):
        return True
    try:
        os.fchown(new, about.st_uid, about.st_gid)
    except PermissionError:  # who may not give a file away may still share it with a group
        with suppress(PermissionError):
            os.fchown(new, -1, about.st_gid)
        return False
    return True


def _owner(fd: int) -> tuple[int, int]:
    about = os.fstat(fd)
    return about.st_uid, about.st_gid


def _copy_extended(old: int, new: int) -> list[str]:
    """Copy the extended attributes; return the names of those that could not be."""
    lost = []
    for name in _extended(old):
        try:
            os.setxattr(new, name, os.getxattr(old, name))
        except OSError:
            lost.append(name)
    return lost


def _extended(fd: int) -> list[str]:
    if not hasattr(os, "listxattr"):  # not on this system
        return []
    try:
        names = os.listxattr(fd)
    except OSError as exc:
        if exc.errno == errno.ENOTSUP:
            return []
        raise
    return [name for name in names if name.startswith(_KEPT_ATTRIBUTES)]
