"""A proxy of Postgres that reads the protocol, and breaks connections at one exact statement or COMMIT."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Self

from sqlalchemy.engine import URL, make_url

from seekpoint.errors import ConfigError
from support import pgwire
from support.proxy import HOST, Link, Proxy, Side
from support.waiting import SECONDS

MOVES = "moved"
"""A text of the statement that moves a worker's offsets, which its display's transactions do not have."""
When = Literal["before_commit", "after_commit", "after_commit_delayed", "at_statement"]


@dataclass
class _Fault:
    when: When
    text: str | None
    skip: int
    session: str | None

    def meets(self, sql: str, commit: bool, link: PostgresLink) -> bool:
        if self.session is not None and not any(self.session in text for text in link.texts):
            return False
        texts = [sql] if self.when == "at_statement" else link.transaction if commit else []
        wanted = any(self.text is None or self.text in text for text in texts)
        if wanted and self.skip:
            self.skip -= 1
            return False
        return wanted


class PostgresProxy(Proxy):
    """A ``Proxy`` that reads the client's messages to Postgres and can break the connection at one exact message.

    ``arm()`` sets one fault for the next matching statement of any connection. After the fault has happened, once,
    ``fired`` is set and ``counts[when]`` increased. ``counts`` also has ``statement`` and ``commit`` (executions
    seen), ``commit_refused`` and ``delivered``. Simple and extended protocol, prepared statements and pipelines
    are understood; an implicit commit (autocommit) is no COMMIT. Requests for TLS are refused: the server must
    accept connections without TLS, and the client not require it (``sslmode=require``).

    ``in_front_of(dsn)`` makes a proxy from a SQLAlchemy URL, and ``dsn`` is that URL with the proxy's address.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self._armed: _Fault | None = None
        self._holding: deque[tuple[PostgresLink, asyncio.Future[str]]] = deque()
        self._url: URL | None = None
        self.fired: Final = threading.Event()
        super().__init__(upstream_host, upstream_port)

    @classmethod
    def in_front_of(cls, dsn: str) -> Self:
        """A proxy of the server of a SQLAlchemy URL; raises ConfigError unless the URL names exactly one host."""
        url = make_url(dsn)
        hosts = [host for host in (url.host, url.query.get("host")) if host]
        ports = [port for port in (url.port, url.query.get("port")) if port]
        match hosts, ports:
            case [str(host)], [int() | str() as port] if "," not in host:
                proxy = cls(host, int(port))
            case [str(host)], [] if "," not in host:
                proxy = cls(host, 5432)
            case _:
                raise ConfigError(f"name exactly one host in the URL to proxy, not {hosts or 'none'}")
        proxy._url = url
        return proxy

    @property
    def dsn(self) -> str:
        """The URL given to ``in_front_of``, with its password and the proxy's address."""
        if self._url is None:
            raise ConfigError("this proxy was not made by PostgresProxy.in_front_of(dsn)")
        through = self._url.difference_update_query(["host", "port"]).set(host=HOST, port=self.port)
        return through.render_as_string(hide_password=False)

    def arm(self, when: When, text: str | None = None, *, skip: int = 0, session: str | None = None) -> None:
        """Break the next matching statement. Replaces an earlier fault, and clears ``fired``.

        - ``before_commit``: the COMMIT is not forwarded and both sides are cut. It has not taken effect; the
          server rolls back, and releases its locks, as soon as it notices.
        - ``after_commit``: the COMMIT is forwarded, the server's answer dropped and the client cut. It has
          taken effect. A refused COMMIT (ROLLBACK, an error) passes through, counts as ``commit_refused``, and
          the fault waits for the next COMMIT.
        - ``after_commit_delayed``: the client is cut at once, and the COMMIT kept until ``deliver()``; meanwhile
          the transaction is open on the server with all its locks.
        - ``at_statement``: both sides are cut before a statement whose SQL contains ``text`` (None: before any
          statement, so that a test can try every ``skip``). The transaction is rolled back.

        For the three faults of COMMIT, ``text`` must be in a statement of the transaction. ``skip`` matches pass
        first. With ``session``, the session must have had a statement with this text.

        In all four cases psycopg raises ``OperationalError`` with ``sqlstate`` None ("server closed the connection
        unexpectedly"), and ``connection.broken`` is true: a COMMIT that took effect looks like one that did not.
        SQLAlchemy's ``OperationalError`` has ``connection_invalidated`` true.
        """
        self._call(self._arm, _Fault(when, text, skip, session))

    def deliver(self, timeout: float = 10.0) -> str:
        """Send the oldest COMMIT that ``after_commit_delayed`` has kept; returns the server's answer.

        ``"COMMIT"``; ``"ROLLBACK"``; ``"ERROR"`` and an SQLSTATE; or ``"CLOSED"`` if the server had ended the
        connection before. Raises ``TimeoutError`` after ``timeout`` seconds, ``RuntimeError`` if no COMMIT is kept.
        """
        return self._do(self._deliver(timeout))

    # What follows runs in the loop's thread.

    def meet(self, link: PostgresLink, sql: str, piece: pgwire.Piece) -> bool:
        """Count the statement, and break it if it matches the fault; True if it must not be forwarded."""
        commit = pgwire.is_commit(sql)
        self.counts["statement"] += 1
        self.counts["commit"] += commit
        fault = self._armed
        if fault is None or not fault.meets(sql, commit, link):
            return False
        self._armed = None
        if fault.when == "after_commit":
            link.watch_answers(lambda answer: self._committed(link, fault, answer))
            return False
        if fault.when == "after_commit_delayed":
            self._hold(link, piece)
        else:
            link.drop()
        self._happened(fault)
        return True

    def wait_until_fired(self, timeout: float = SECONDS) -> None:
        """Wait until the fault has happened: a test in which it did not proves nothing."""
        assert self.fired.wait(timeout), f"not within {timeout} s: a statement or COMMIT for {self._armed}"

    def _arm(self, fault: _Fault) -> None:
        self._armed = fault
        self.fired.clear()

    def _happened(self, fault: _Fault) -> None:
        self.counts[fault.when] += 1
        self.loop.call_soon(self.fired.set)  # after the closing of sockets, which waits in the same queue

    def _committed(self, link: PostgresLink, fault: _Fault, answer: str) -> bool:
        if answer == "COMMIT":
            link.drop()
            self._happened(fault)
        elif answer in {"ROLLBACK", "CLOSED"} or answer.startswith("ERROR"):
            self.counts["commit_refused"] += 1
            self._armed = self._armed or fault
        else:
            return False  # of an earlier statement in the pipeline
        return True

    def _hold(self, link: PostgresLink, piece: pgwire.Piece) -> None:
        answer: asyncio.Future[str] = self.loop.create_future()

        def answered(outcome: str) -> bool:
            final = outcome in {"COMMIT", "ROLLBACK", "CLOSED"} or outcome.startswith("ERROR")
            if final and not answer.done():
                answer.set_result(outcome)
            return final

        link.watch_answers(answered)
        link.hold(piece.raw if piece.kind == ord("Q") else piece.raw + pgwire.SYNC)
        self._holding.append((link, answer))

    async def _deliver(self, timeout: float) -> str:
        if not self._holding:
            raise RuntimeError("no COMMIT is held back: arm('after_commit_delayed') and wait for fired first")
        link, answer = self._holding.popleft()
        if not answer.done():
            assert link.held is not None
            link.send_server(link.held)
        outcome = await asyncio.wait_for(answer, timeout)
        self.counts["delivered"] += 1
        link.drop()
        return outcome

    def _new_link(self) -> Link:
        return PostgresLink(self)


class PostgresLink(Link):
    """A link that reads the client's statements, and the server's answers while one is awaited."""

    def __init__(self, proxy: PostgresProxy) -> None:
        super().__init__(proxy)
        self._postgres = proxy
        self._greeting: pgwire.Greeting | None = pgwire.Greeting()
        self._frontend = pgwire.Framer(pgwire.FRONTEND)
        self._backend = pgwire.Framer()
        self._statements = pgwire.Statements()
        self._answered: Callable[[str], bool] | None = None
        self.held: bytes | None = None
        self.transaction: list[str] = []  # its statements so far
        self.texts: set[str] = set()  # the session's statements so far

    def from_client(self, data: bytes) -> None:
        if self._greeting is not None:
            refusals, data = self._greeting.feed(data)
            for _ in range(refusals):
                self.send_client(pgwire.REFUSED)
            if not data:
                return
            self._greeting = None
            self._frontend.skip(int.from_bytes(data[:4], "big"))
        for piece in self._frontend.feed(data):
            sql = self._statements.executed(piece)
            if sql is not None:
                if sql.startswith("BEGIN"):
                    self.transaction.clear()
                self.transaction.append(sql)
                self.texts.add(sql)
            if sql is None or not self._postgres.meet(self, sql, piece):
                self.send_server(piece.raw)
            if self.dropped or self.held is not None:
                return  # what the client sent after it is lost with the connection

    def from_server(self, data: bytes) -> None:
        for piece in self._backend.feed(data):
            if piece.kind and self._answered is not None and self._answered(pgwire.outcome(piece)):
                self.ignore_answers()
            if self.held is None and not self.dropped:
                self.send_client(piece.raw)

    def watch_answers(self, answered: Callable[[str], bool]) -> None:
        """Pass the outcome of each statement to ``answered``, until that returns True."""
        self._backend.wanted, self._answered = pgwire.ANSWERS, answered

    def ignore_answers(self) -> None:
        self._backend.wanted, self._answered = b"", None

    def hold(self, held: bytes) -> None:
        """Reset the client only; the server continues to wait for it."""
        self.held = held
        self.client.reset()

    def lost(self, side: Side) -> None:
        if side is self.server and self._answered is not None:
            self._answered("CLOSED")
        if self.held is None or side is self.server:
            super().lost(side)
