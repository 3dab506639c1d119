"""The roles of a ledger as ``seekpoint db roles`` makes them, and logins that have them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.pool import NullPool

from seekpoint.ledger.role_script import role_script
from seekpoint.ledger.roles import Role
from seekpoint.ledger.tables import DEFAULT_SCHEMA
from support.databases import libpq

# Two sessions that change the rights on one database at once: one would fail ("tuple concurrently updated").
ALONE = "SELECT pg_advisory_lock(hashtext('roles of a test'))"
ALONE_IN_TRANSACTION = "SELECT pg_advisory_xact_lock(hashtext('roles of a test'))"


class LedgerRoles:
    """Roles of the ledger at ``url``; their names are random, since a server's databases share roles.

    ``owner`` is a role that owns the ledger already; without it a role is created, which gets the tables.
    """

    def __init__(self, url: URL, schema: str = DEFAULT_SCHEMA, *, owner: str | None = None) -> None:
        self.url, self.schema = url, schema
        self.names = {role: f"{role}-{secrets.token_hex(4)}" for role in Role}
        self._owner, self._logins = owner, list[str]()
        if owner is not None:
            self.names[Role.OWNER] = owner

    @contextmanager
    def _server(self) -> Iterator[psycopg.Connection]:
        with psycopg.connect(self.dsn(), autocommit=True) as server:
            server.execute(ALONE)
            yield server

    def script(self, *targets: str) -> None:
        """Run the script that `seekpoint db roles` prints."""
        with self._server() as server:
            server.execute(role_script(schema=self.schema, names=self.names, targets=targets).encode())

    def run(self, statement: str) -> None:
        """Run a statement as the role that runs the test."""
        with self._server() as server:
            server.execute(statement.encode())

    def dsn(self) -> str:
        """The URL for psycopg, of the role that runs the test."""
        return libpq(self.url)

    def engine(self, role: Role, **settings: str) -> Engine:
        """An engine whose sessions have this role and these settings."""
        options = " ".join(f"-c {name}={value}" for name, value in {"role": self.names[role], **settings}.items())
        connect: dict[str, Any] = {"options": options}
        return create_engine(self.url, poolclass=NullPool, connect_args=connect)

    def login(self, role: Role) -> URL:
        """Create a login that has the role; returns its URL."""
        name, password = f"{self.names[role]}-login", secrets.token_hex(8)
        self._logins.append(name)
        self.run(f'CREATE ROLE "{name}" LOGIN PASSWORD \'{password}\' IN ROLE "{self.names[role]}"')
        return self.url.set(username=name, password=password)

    def drop(self) -> None:
        """Drop all roles and their objects."""
        with self._server() as server:
            for name in [*self._logins, *self.names.values()]:
                if name == self._owner:
                    continue
                quoted = '"' + name.replace('"', '""') + '"'
                server.execute(f"DROP OWNED BY {quoted} CASCADE".encode())
                server.execute(f"DROP ROLE {quoted}".encode())
