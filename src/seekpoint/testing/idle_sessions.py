"""Keeps sessions that tests have closed for later tests, because a new one costs the server several milliseconds."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import adapt, postgres, pq
from psycopg.abc import AdaptContext
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn
from sqlalchemy import Engine, event

_MOST_IDLE = 12  # sessions per process, plus as many closed by the current test; the server allows 300


class IdleSessions:
    """Lends sessions that earlier tests have closed, reset by ``DISCARD ALL``, each in a new connection.

    A session that a test closes is lent only to later tests, so a test never gets a session twice. A session that is
    closed within a transaction also ends on the server, and so do all but the first twelve that a test closes.
    """

    def __init__(self) -> None:
        self._idle: list[PGconn] = []
        self._closed: list[PGconn] = []
        self._parameters: Mapping[str, Any] | None = None

    def lend_to(self, engine: Engine) -> None:
        """Provide all connections of this engine, and of engines with its dialect; for one database only."""
        event.listen(engine, "do_connect", self._connect)

    def next_test(self) -> None:
        """From now on, also lend the sessions that were closed so far."""
        while self._closed and len(self._idle) < _MOST_IDLE:
            self._idle.append(self._closed.pop())
        _finish(self._closed)

    def close(self) -> None:
        """End all sessions that are not lent."""
        _finish(self._idle)
        _finish(self._closed)

    def keep(self, session: PGconn) -> bool:
        """Keep the session for the next test. False if its state cannot be reset, or enough sessions are kept."""
        if len(self._closed) >= _MOST_IDLE:
            return False
        if session.transaction_status != TransactionStatus.IDLE or session.pipeline_status != PipelineStatus.OFF:
            return False
        if session.exec_(b"DISCARD ALL").status != ExecStatus.COMMAND_OK:
            return False
        self._closed.append(session)
        return True

    def _connect(self, _dialect: object, _record: object, arguments: Sequence[Any], parameters: dict[str, Any]) -> Any:
        """Called by SQLAlchemy: the connection to use, or None."""
        context = parameters.get("context")
        plain = {name: value for name, value in parameters.items() if name != "context"}
        self._parameters = self._parameters or plain
        if plain != self._parameters:
            return None
        while self._idle:
            session = self._idle.pop()
            if _is_quiet(session):
                return _Connection(session).lent(self, context)
            session.finish()
        return _Connection.connect(*arguments, **parameters).lent(self, context)


class _Connection(psycopg.Connection[Any]):
    """A connection whose session may outlive it."""

    _idle_sessions: IdleSessions
    _own_adapters: adapt.AdaptersMap

    def lent(self, sessions: IdleSessions, context: AdaptContext | None) -> _Connection:
        """Return the session to ``sessions`` when the connection is closed."""
        self._idle_sessions = sessions
        self._own_adapters = adapt.AdaptersMap(postgres.adapters if context is None else context.adapters)
        return self

    @property
    def adapters(self) -> adapt.AdaptersMap:
        return self._own_adapters

    def close(self) -> None:
        session = self.pgconn
        if not self.closed and self._idle_sessions.keep(session):
            self.pgconn = _ended()
        else:
            super().close()


def _is_quiet(session: PGconn) -> bool:
    """Whether the session is alive: a server that had ended it would have sent the reason."""
    poll = select.poll()
    poll.register(session.socket, select.POLLIN)
    return session.status == ConnStatus.OK and not poll.poll(0)


def _ended() -> PGconn:
    """The session of a closed connection."""
    session = pq.PGconn.connect_start(b"host=/nowhere")
    session.finish()
    return session


def _finish(sessions: list[PGconn]) -> None:
    while sessions:
        sessions.pop().finish()
