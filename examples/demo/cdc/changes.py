"""Changes the source's table: random inserts, updates, deletes and changed keys, in transactions."""

from __future__ import annotations

import threading
from random import Random
from typing import Self

from sqlalchemy import Connection, Engine, text

_INSERT = text(
    "INSERT INTO shop.customers VALUES (:id, :name, :balance, '2026-11-01 10:00:00.123456'::timestamp + :n * interval "
    "'1 second', clock_timestamp(), ARRAY[:name, NULL], (SELECT string_agg(md5((:n + i)::text), '') FROM "
    "generate_series(1, 80) i)) ON CONFLICT (id) DO NOTHING"
)
_UPDATE = text("UPDATE shop.customers SET balance = balance + 0.01, changed = clock_timestamp() WHERE id = :id")
_REWRITE = text("UPDATE shop.customers SET body = body || :name, name = :name WHERE id = :id")
_DELETE = text("DELETE FROM shop.customers WHERE id = :id")
# The body is changed with the key: Debezium sends a changed key as a new row, without what Postgres did not log.
_MOVE = text(
    "UPDATE shop.customers SET id = :other, body = body || 'moved' WHERE id = :id AND NOT EXISTS "
    "(SELECT FROM shop.customers WHERE id = :other)"
)
_LAST = text(
    "INSERT INTO shop.customers (id, name, changed) SELECT -n, 'last', now() FROM generate_series(1, :count) n"
)
ROWS = 5_000  # ids; each is inserted, changed and deleted many times
LAST = 64  # rows at the end, so that each partition gets one


class Changes(threading.Thread):
    """A thread that changes the table, in transactions of up to 20 statements; one in ten is rolled back."""

    def __init__(self, engine: Engine, seed: int) -> None:
        super().__init__(name="changes", daemon=True)
        self._engine, self._random, self._stopping = engine, Random(seed), threading.Event()
        self.statements = 0
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        """Change the table until :meth:`finish`, or the end of the block."""
        try:
            with self._engine.connect() as connection:
                while not self._stopping.wait(0.01):
                    count = self._random.randrange(1, 20)
                    for _ in range(count):
                        self._change(connection)
                    if self._random.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.commit()
                        self.statements += count
        except Exception as error:  # noqa: BLE001 -- the demo raises it
            self.error = error

    def has_made(self, statements: int) -> bool:
        """Whether it has committed this number of statements. Raises an error of the thread."""
        if self.error is not None:
            raise self.error
        return self.statements >= statements

    def finish(self) -> None:
        """Stop, and insert the last rows: a copy that has them has everything. Raises an error of the thread."""
        self._stopping.set()
        self.join()
        self.has_made(0)
        with self._engine.begin() as connection:
            connection.execute(_LAST, {"count": LAST})

    def _change(self, connection: Connection) -> None:
        draw, n = self._random, self._random.randrange(10**6)
        statement = draw.choices([_INSERT, _UPDATE, _REWRITE, _DELETE, _MOVE], [4, 8, 2, 2, 1])[0]
        values = {"id": draw.randrange(ROWS), "other": draw.randrange(ROWS), "n": n, "name": f"name {n}", "balance": n}
        connection.execute(statement, {name: values[name] for name in statement.compile().params})
