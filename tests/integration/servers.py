"""Private Redis, PostgreSQL and PgBouncer servers: a free port on loopback, a temporary folder, gone at the end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import pytest
import redis

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def load_stub() -> Iterator[tuple[str, int]]:
    """Run ``load_stub.py``; yield its URL and its process id."""
    script = Path(__file__).with_name("load_stub.py")
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid
    process.kill()
    process.wait()
    process.stdout.close()


class Process:
    """A server process, known to be ready by a line that it writes."""

    def __init__(self, command: Sequence[str], ready: str, user: str | None = None) -> None:
        self.output: list[str] = []
        self._ready = threading.Event()
        options = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []} if user else {}
        # C: the line to wait for is English.
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            cwd="/",
            **options,
        )
        self._reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self._reader.start()
        if not self._ready.wait(START_TIMEOUT_S) or self._process.poll() is not None:
            self.stop(signal.SIGKILL)
            raise RuntimeError(f"{command[0]} did not start:\n{''.join(self.output[-20:])}")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop(signal.SIGKILL)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is still there."""
        if self.runs:
            self._process.send_signal(number)

    def stop(self, number: signal.Signals) -> None:
        """Stop it, wake it if it was paused, and wait until it is gone."""
        self.send(number)
        self.send(signal.SIGCONT)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self, ready: str) -> None:
        assert self._process.stdout is not None
        with suppress(ValueError):
            for line in self._process.stdout:
                self.output.append(line)
                if ready in line:
                    self._ready.set()
        # The end of the output is the end of the process: whoever waits need not wait longer.
        self._ready.set()


class RedisServer:
    """A Redis without persistence."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process: Process | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, empty."""
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("redis-server is not installed")
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = Process([*command, "--dir", tempfile.gettempdir()], "Ready to accept connections")

    def kill(self) -> None:
        """End it as a crash would."""
        if self.process is not None:
            self.process.stop(signal.SIGKILL)
            self.process = None

    def empty(self) -> None:
        """Forget all values."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()

    def pause(self) -> None:
        """Stop it from answering; connections stay open."""
        assert self.process is not None
        self.process.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send(signal.SIGCONT)


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A running Redis, killed at the end; the test is skipped where there is none."""
    server = RedisServer()
    server.start()
    try:
        yield server
    finally:
        server.kill()


class PostgresServer:
    """A PostgreSQL with one database, durable enough for a test."""

    def __init__(self, binaries: Path, folder: Path, user: str | None) -> None:
        self.port = free_port()
        self._binaries = binaries
        self._folder = folder
        self._user = user
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"postgresql://tailcut@127.0.0.1:{self.port}/postgres"

    @property
    def pid(self) -> int:
        """Of the process that started all others."""
        assert self._process is not None
        return self._process.pid

    def create(self) -> None:
        """Make the data folder."""
        command = [str(self._binaries / "initdb"), "-D", str(self._folder / "data"), "-U", "tailcut", "-A", "trust"]
        done = subprocess.run(
            [*command, "--no-sync", "-E", "UTF8", "--locale=C"],
            user=self._user,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"initdb failed:\n{done.stdout}{done.stderr}")

    def start(self) -> None:
        """Start it on the port that it always had."""
        settings = {"listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": self._folder}
        settings |= {"fsync": "off", "full_page_writes": "off", "max_connections": 60, "shared_buffers": "16MB"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._binaries / "postgres"), "-D", str(self._folder / "data"), *options]
        self._process = Process(command, "database system is ready to accept connections", self._user)

    def stop(self) -> None:
        """Stop it at once, cutting all connections."""
        if self._process is not None:
            self._process.stop(signal.SIGQUIT)
            self._process = None


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL, stopped at the end; the test is skipped where there is none.

    PostgreSQL refuses root, so root starts it as the user ``postgres``.
    """
    binaries = _postgres_binaries()
    user = "postgres" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="tailcut-pg-"))
    try:
        if user is not None:
            try:
                shutil.chown(folder, user)
            except LookupError:
                pytest.skip("running as root, and there is no user postgres to start PostgreSQL as")
        server = PostgresServer(binaries, folder, user)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def pgbouncer(
    database: str, mode: str, pool_size: int = 2, *, output: list[str] | None = None, **settings: object
) -> Iterator[str]:
    """A running PgBouncer before a database on loopback; yields the URL. The test is skipped where there is none.

    Args:
        database: URL of the database.
        mode: ``session``, ``transaction`` or ``statement``.
        pool_size: most sessions with the server.
        output: takes what it has written, in the end.
    """
    binary = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if binary is None:
        pytest.skip("pgbouncer is not installed")
    port, server = free_port(), urlsplit(database)
    options = {"listen_addr": "127.0.0.1", "listen_port": port, "unix_socket_dir": "", "auth_type": "any"}
    options |= {"pool_mode": mode, "default_pool_size": pool_size, "max_client_conn": 200} | settings
    lines = [f"{name} = {value}" for name, value in options.items()]
    target = f"host={server.hostname} port={server.port} dbname={server.path[1:]} user={server.username}"
    user = "postgres" if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="tailcut-pgbouncer-") as folder:
        configuration = Path(folder) / "pgbouncer.ini"
        configuration.write_text("\n".join(["[databases]", f"app = {target}", "[pgbouncer]", *lines, ""]))
        if user is not None:
            for path in (Path(folder), configuration):
                shutil.chown(path, user)
        with Process([binary, str(configuration)], "process up", user) as process:
            try:
                yield f"postgresql://{server.username}@127.0.0.1:{port}/app"
            except BaseException as error:
                error.add_note(f"PgBouncer {'runs' if process.runs else 'has ended'}: {''.join(process.output[-20:])}")
                raise
            finally:
                if output is not None:
                    output += process.output


def _postgres_binaries() -> Path:
    found = shutil.which("postgres")
    if found is not None and (Path(found).parent / "initdb").exists():
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if not versions:
        pytest.skip("PostgreSQL is not installed (neither on PATH nor under /usr/lib/postgresql)")
    return versions[-1].parent
