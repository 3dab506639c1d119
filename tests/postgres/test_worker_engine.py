"""A worker's engine: the settings and listeners of the application's, and a separate pool."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import (
    JSON,
    URL,
    AssertionPool,
    Connection,
    Engine,
    NullPool,
    QueuePool,
    SingletonThreadPool,
    StaticPool,
    bindparam,
    event,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from seekpoint import Json, Pipeline, Worker
from seekpoint.errors import ConfigError
from seekpoint.postgres.engine import WORKER_CONNECTIONS, worker_engine
from seekpoint.sinks import Append
from support.fixtures import NewEngine
from support.ledger_roles import LedgerRoles

SESSION = text("SELECT pg_backend_pid()")


@pytest.fixture
def own_engine(new_engine: NewEngine) -> Any:
    """``own_engine(engine)`` makes a worker's engine, which is disposed of after the test."""
    engines: list[Engine] = []

    def make(engine: Engine) -> Engine:
        engines.append(worker_engine(engine))
        return engines[-1]

    yield make
    for engine in engines:
        engine.dispose()


OwnEngine = Callable[[Engine], Engine]


def backend(connection: Connection) -> int:
    return int(connection.execute(SESSION).scalar_one())


def test_the_applications_connections_are_not_used(
    seekpoint_dsn: str, new_engine: NewEngine, own_engine: OwnEngine
) -> None:
    """It uses the same sessions before and after, and has all of its pool meanwhile."""
    engine = new_engine(seekpoint_dsn, pool_size=1, max_overflow=0, pool_timeout=0)
    with engine.connect() as connection:
        before = backend(connection)
    own = own_engine(engine)
    with engine.connect() as connection, own.connect() as worker, own.connect() as ledger, own.connect() as replay:
        sessions = {backend(connection), *map(backend, (worker, ledger, replay))}
        assert backend(connection) == before
        assert len(sessions) == WORKER_CONNECTIONS + 1
        with pytest.raises(PoolTimeout):
            own.connect()
    own.dispose()
    with engine.connect() as connection:
        assert backend(connection) == before


def test_a_lost_connection_of_the_worker_closes_none_of_the_application(
    seekpoint_dsn: str, new_engine: NewEngine, own_engine: OwnEngine
) -> None:
    """SQLAlchemy replaces all connections of a pool after it has lost one."""
    engine = new_engine(seekpoint_dsn)
    with engine.connect() as connection:
        before = backend(connection)
    own = own_engine(engine)
    with own.connect() as worker, engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": backend(worker)})
        with pytest.raises(DBAPIError, match="terminat"):
            worker.execute(SESSION)
    with engine.connect() as connection:
        assert backend(connection) == before


def test_a_do_connect_listener_refreshes_the_token_of_each_connection(
    seekpoint_dsn: str, new_engine: NewEngine, own_engine: OwnEngine
) -> None:
    """Each connection logs in with the token of that moment, as with a cloud's short-lived passwords."""
    roles, tokens, login = LedgerRoles(make_url(seekpoint_dsn)), list[str](), f"token-{secrets.token_hex(4)}"
    roles.run(f'CREATE ROLE "{login}" LOGIN')
    engine = new_engine(make_url(seekpoint_dsn).set(username=login, password="expired"))

    def refresh(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
        tokens.append(f"token {len(tokens)}")
        roles.run(f"ALTER ROLE \"{login}\" PASSWORD '{tokens[-1]}'")
        parameters["password"] = tokens[-1]

    event.listen(engine, "do_connect", refresh)
    try:
        own = own_engine(engine)
        with own.connect() as first, own.connect() as second:
            assert {first.scalar(text("SELECT current_user")), second.scalar(text("SELECT current_user"))} == {login}
        assert tokens == ["token 0", "token 1"]
        own.dispose()
        engine.dispose()
    finally:
        roles.run(f'DROP ROLE "{login}"')


def test_a_creator_and_the_pools_listeners_are_kept(
    seekpoint_dsn: str, new_engine: NewEngine, own_engine: OwnEngine
) -> None:
    url, seen = make_url(seekpoint_dsn).set(drivername="postgresql"), list[str]()

    def create() -> psycopg.Connection[Any]:
        return psycopg.connect(url.render_as_string(hide_password=False), application_name="made by the application")

    engine = new_engine(seekpoint_dsn, creator=create)
    event.listen(engine, "connect", lambda *_: seen.append("connect"))
    event.listen(engine, "checkout", lambda *_: seen.append("checkout"))
    own = own_engine(engine)
    for _ in range(2):
        with own.connect() as connection:
            assert connection.scalar(text("SHOW application_name")) == "made by the application"
    assert seen == ["connect", "checkout", "checkout"]


def test_the_engines_listeners_and_options_are_kept(
    seekpoint_dsn: str, new_engine: NewEngine, own_engine: OwnEngine
) -> None:
    """Those of the engine and of what its ``execution_options()`` returned; a class's listeners run once."""
    seen: list[str] = []
    engine = new_engine(seekpoint_dsn, hide_parameters=True, json_serializer=lambda _: '"serialized"')
    event.listen(engine, "begin", lambda _: seen.append("begin"))
    chosen = engine.execution_options(isolation_level="READ COMMITTED", mine=1)
    event.listen(chosen, "before_cursor_execute", lambda _c, _k, statement, *_: seen.append(statement))
    event.listen(chosen, "before_cursor_execute", _marked, retval=True)
    event.listen(chosen, "engine_disposed", lambda _: seen.append("disposed"))

    def of_all(_connection: Connection) -> None:
        seen.append("of all engines")

    event.listen(Engine, "commit", of_all)
    try:
        own = own_engine(chosen)
        with own.connect() as connection:
            stored = connection.scalar(select(bindparam("value", {"a": 1}, type_=JSON)))
            connection.commit()
            assert connection.get_execution_options()["mine"] == 1
    finally:
        event.remove(Engine, "commit", of_all)
    own.dispose()
    assert stored == "serialized"
    assert own.hide_parameters
    assert [entry for entry in seen if entry in {"begin", "disposed", "of all engines"}] == ["begin", "of all engines"]
    assert any(entry.startswith("SELECT") and not entry.endswith("marked */") for entry in seen)


def _marked(
    _connection: object, _cursor: object, statement: str, parameters: object, _context: object, _many: bool
) -> tuple[str, object]:
    return f"{statement} /* marked */", parameters


def test_a_listener_may_still_change_a_statement(
    seekpoint_dsn: str, new_engine: NewEngine, own_engine: OwnEngine
) -> None:
    engine = new_engine(seekpoint_dsn)
    event.listen(engine, "before_cursor_execute", _marked, retval=True)
    with own_engine(engine).connect() as connection:
        query = connection.scalar(text("SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()"))
    assert query is not None
    assert query.endswith("/* marked */")


def test_a_pool_that_keeps_no_connection_keeps_none(
    seekpoint_dsn: str, new_engine: NewEngine, own_engine: OwnEngine
) -> None:
    own = own_engine(new_engine(seekpoint_dsn, poolclass=NullPool))
    with own.connect() as first:
        before = backend(first)
    with own.connect() as second:
        assert backend(second) != before


class SamePool(QueuePool):
    """A pool of which no second one can be made."""

    def recreate(self) -> QueuePool:
        return self


@pytest.mark.parametrize("kind", [StaticPool, SingletonThreadPool, AssertionPool, SamePool])
def test_a_pool_of_which_a_worker_cannot_have_its_own_is_refused(
    seekpoint_dsn: str, group: str, new_engine: NewEngine, kind: Any
) -> None:
    pipeline = Pipeline(group, topics="t", value=Json(), sinks=[Append("t", columns=["id"])])
    engine = new_engine(seekpoint_dsn, poolclass=kind)
    with pytest.raises(ConfigError, match=f"{kind.__name__}.*create (it|the engine) without poolclass="):
        Worker(pipeline, engine=engine, kafka={"bootstrap.servers": "127.0.0.1:1"})


def test_a_connection_is_refused(seekpoint_engine: Engine, group: str) -> None:
    pipeline = Pipeline(group, topics="t", value=Json(), sinks=[Append("t", columns=["id"])])
    not_an_engine: Any
    with (
        seekpoint_engine.connect() as not_an_engine,
        pytest.raises(ConfigError, match=r"engine is a Connection, .*: pass connection\.engine"),
    ):
        Worker(pipeline, engine=not_an_engine, kafka={"bootstrap.servers": "127.0.0.1:1"})


def test_a_url_makes_a_pool_of_this_size(seekpoint_dsn: str, own_engine: Callable[[URL], Engine]) -> None:
    pool = own_engine(make_url(seekpoint_dsn)).pool
    assert isinstance(pool, QueuePool)
    assert pool.size() == WORKER_CONNECTIONS
