"""Forks as fast as it can, in every way, and cannot run away: `fork_loop.py PROCESSES SECONDS`.

It says "up" when there are as many processes as it may have. It never runs as root, the kernel limits how many there
are, and every process ends by itself after some seconds, or as a descendant of too many others.
"""

import os
import resource
import signal
import sys
import time

MAX_GENERATIONS = 20_000
NOBODY = 65534


def main(processes: int, seconds: int) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    limit = processes + tasks_of(os.getuid())
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fork_until(time.monotonic() + seconds, seconds)


def tasks_of(user: int) -> int:
    found = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                found += len(os.listdir(f"/proc/{name}/task"))
        except OSError:  # it ended while we looked
            pass
    return found


def fork_until(end: float, seconds: int) -> None:
    """Every child leads a session of its own, and every second parent but the first exits before it."""
    signal.alarm(seconds)
    has_spoken = False
    generation = 0
    while time.monotonic() < end and generation < MAX_GENERATIONS:
        try:
            child = os.fork()
        except BlockingIOError:
            if not has_spoken:
                os.write(1, b"up\n")
                has_spoken = True
            reap()
            continue
        if child == 0:
            signal.alarm(seconds)
            generation += 1
            os.setsid()
        elif child % 2 and generation:
            os._exit(0)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


main(int(sys.argv[1]), int(sys.argv[2]))
