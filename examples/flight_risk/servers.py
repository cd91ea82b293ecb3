"""Private PostgreSQL and Redis in a temporary folder: started, loaded, stopped and removed."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PATIENCE_S = 30.0
_USERS = ("postgres", "nobody")


class ServerError(RuntimeError):
    """A private server did not start."""


def find_postgres() -> Path | None:
    """Return the folder of PostgreSQL's programs: that on PATH, else Debian's newest."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


def find_redis() -> str | None:
    """Return the path of redis-server."""
    return shutil.which("redis-server")


def find_user() -> str | None:
    """Return the user that servers run as where this is root, which PostgreSQL refuses; None where it is not."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise ServerError(f"this is root, which PostgreSQL refuses, and there is none of the users {', '.join(_USERS)}")


@contextmanager
def private_servers() -> Iterator[tuple[str, str]]:
    """Run both servers; yield the URLs of an empty database and of Redis.

    Raises:
        ServerError: a program is missing, or a server did not start.
    """
    bin_, redis = find_postgres(), find_redis()
    if bin_ is None or redis is None:
        raise ServerError("PostgreSQL's initdb or redis-server is not installed")
    user = find_user()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="flight-risk-", dir=_reachable_folder()))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if user is not None:
            shutil.chown(folder, user)
        database = stack.enter_context(_postgres(bin_, folder, user))
        yield database, stack.enter_context(_redis(redis, folder, user))


@contextmanager
def _postgres(bin_: Path, folder: Path, user: str | None) -> Iterator[str]:
    password, data, secret = secrets.token_hex(16), folder / "data", folder / "password"
    secret.write_text(password)
    if user is not None:
        shutil.chown(secret, user)
    options = ["-D", str(data), "-U", "flight_risk", "-A", "scram-sha-256", "--pwfile", str(secret)]
    made = subprocess.run(
        [*_as_user(user), f"{bin_}/initdb", *options, "-E", "UTF8", "--locale=C", "--no-sync"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if made.returncode != 0:
        raise ServerError(f"initdb failed: {made.stderr.strip()}")

    def command(port: int) -> list[str]:
        # The data are a copy, so a crash may lose them; nothing else differs from a small production server.
        settings = {
            "fsync": "off",
            "shared_buffers": "256MB",
            "max_connections": "100",
            "listen_addresses": "127.0.0.1",
        }
        settings |= {"unix_socket_directories": "", "port": str(port), "jit": "off"}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [f"{bin_}/postgres", "-D", str(data), *words]

    def url(port: int) -> str:
        return f"postgresql://flight_risk:{password}@127.0.0.1:{port}/postgres"

    with _running(command, lambda port: _answers_sql(url(port)), folder, user, signal.SIGINT) as port:
        yield url(port)


@contextmanager
def _redis(program: str, folder: Path, user: str | None) -> Iterator[str]:
    password, config = secrets.token_hex(16), folder / "redis.conf"

    def command(port: int) -> list[str]:
        config.write_text(
            f'bind 127.0.0.1\nport {port}\nrequirepass {password}\nsave ""\nappendonly no\ndir {folder}\n'
            "maxmemory 256mb\nmaxmemory-policy allkeys-lru\n"
        )
        config.chmod(0o600)
        if user is not None:
            shutil.chown(config, user)
        return [program, str(config)]

    def url(port: int) -> str:
        return f"redis://:{password}@127.0.0.1:{port}/0"

    with _running(command, lambda port: _answers_ping(port, password), folder, user, signal.SIGTERM) as port:
        yield url(port)


@contextmanager
def _running(
    command: Callable[[int], list[str]],
    answers: Callable[[int], bool],
    folder: Path,
    user: str | None,
    stop_signal: signal.Signals,
) -> Iterator[int]:
    """Run a server on a free port until the block ends; another port is tried where one was taken in between."""
    for attempt in range(3):
        port = _free_port()
        words = command(port)
        log = folder / f"{Path(words[0]).name}-{attempt}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                _as_user(user) + words, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        try:
            if _wait_until_answering(process, lambda port=port: answers(port)):  # type: ignore[misc]
                yield port
                return
        finally:
            _stop(process, stop_signal)
    raise ServerError(f"{Path(words[0]).name} did not start: {log.read_text(errors='replace')[-500:].strip()}")


def _wait_until_answering(process: subprocess.Popen[bytes], answers: Callable[[], bool]) -> bool:
    """Return whether the server answers; False as soon as it has exited."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and process.poll() is None:
        if answers():
            return True
        time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    if process.poll() is not None:
        return
    process.send_signal(stop_signal)
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _as_user(user: str | None) -> list[str]:
    """Words that run a command as ``user``, and stop it should this process be killed outright.

    To the kernel the parent is the thread that starts the command, so the servers end with that thread.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if user is not None:
            raise ServerError("this is root, which PostgreSQL refuses, and setpriv (util-linux) is not installed")
        return []
    words = [setpriv, "--pdeathsig", "INT"]
    if user is None:
        return words
    group = pwd.getpwnam(user).pw_gid
    return [*words, "--reuid", user, "--regid", str(group), "--clear-groups"]


def _answers_sql(url: str) -> bool:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=2):
            return True
    except psycopg.OperationalError:
        return False


def _answers_ping(port: int, password: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2.0) as client:
            client.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            seen = b""
            while not seen.endswith(b"+PONG\r\n") and (part := client.recv(256)):
                seen += part
            return seen.endswith(b"+PONG\r\n")
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _reachable_folder() -> str:
    """A folder for temporary files that another user can pass through."""
    for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp"):  # noqa: S108  # made private by mkdtemp
        path = Path(folder).resolve()
        if all(one.stat().st_mode & 0o001 for one in (path, *path.parents)):
            return str(path)
    return tempfile.gettempdir()
