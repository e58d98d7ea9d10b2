"""Network namespaces as machines of their own, on a bridge without a way out. Needs root and iproute2."""

from __future__ import annotations

import os
import shutil
import subprocess


class CannotSeparate(Exception):
    """This machine allows no network namespaces; says why."""


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotSeparate(f"ip {' '.join(words[:3])}: {done.stderr.strip()}")


class Network:
    """A bridge, and a namespace for each name that joins. Close it."""

    def __init__(self) -> None:
        """Raise CannotSeparate."""
        if shutil.which("ip") is None:
            raise CannotSeparate("there is no program ip")
        if os.geteuid() != 0:
            raise CannotSeparate("only root may make network namespaces")
        number = os.getpid() % 100_000
        self._bridge, self._prefix = f"zb{number}", f"z{number}"
        self._subnet = f"10.213.{number % 250}"
        #: The address of this machine on the bridge.
        self.address = f"{self._subnet}.1"
        self._names: list[str] = []
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
        except CannotSeparate:
            self.close()
            raise

    def join(self, name: str) -> list[str]:
        """Return the words that run a command in the namespace of a name. Raise CannotSeparate."""
        if name not in self._names:
            self._names.append(name)
            space, outer, inner = self._space(name), self._outer(name), f"{self._outer(name)}i"
            _ip("netns", "add", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", space)
            _ip("link", "set", outer, "master", self._bridge)
            _ip("link", "set", outer, "up")
            _ip("-n", space, "addr", "add", f"{self._subnet}.{len(self._names) + 1}/24", "dev", inner)
            _ip("-n", space, "link", "set", inner, "up")
            _ip("-n", space, "link", "set", "lo", "up")
        return ["ip", "netns", "exec", self._space(name)]

    def cut(self, name: str) -> None:
        """Lose every packet from and to a namespace."""
        _ip("link", "set", self._outer(name), "nomaster")

    def mend(self, name: str) -> None:
        """Connect a namespace again."""
        _ip("link", "set", self._outer(name), "master", self._bridge)

    def close(self) -> None:
        """Remove the bridge and all namespaces."""
        words = [["link", "del", self._outer(name)] for name in self._names]
        words += [["netns", "del", self._space(name)] for name in self._names]
        for one in (*words, ["link", "del", self._bridge]):
            subprocess.run(["ip", *one], capture_output=True, check=False)

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def _outer(self, name: str) -> str:
        return f"{self._prefix}v{self._names.index(name)}"
