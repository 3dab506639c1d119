"""TCP proxies that break connections on purpose: ``Proxy`` for any protocol, ``PostgresProxy`` knows a COMMIT.

Each runs an event loop in a thread of its own, on a free loopback port, without encryption.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeVar

from sqlalchemy.engine import URL, make_url

from seekpoint.errors import ConfigError
from support import pgwire
from support.postgres_link import PostgresLink
from support.proxy_links import Direction, Link, Side

T = TypeVar("T")
When = Literal["before_commit", "after_commit", "after_commit_delayed", "at_statement"]

_HOST: Final = "127.0.0.1"


class Proxy:
    """Forwards a free loopback ``port`` to the upstream until told to misbehave; for tests and benchmarks.

    ``counts`` tells what happened: ``connected``, ``cut``, ``unreachable`` (the upstream could not be reached, so
    the client was reset). Each method returns when its work is done and may be called from any thread. Leaving
    the ``with`` block resets what is open and raises ``RuntimeError`` if the proxy itself failed inside.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self.upstream: Final = (upstream_host, upstream_port)
        self.counts: Counter[str] = Counter()
        self.delays: dict[Direction, float] = {"to_server": 0.0, "to_client": 0.0}
        self.frozen = False
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self._failure: BaseException | None = None
        self._links: set[Link] = set()
        self._reaching: set[asyncio.Task[None]] = set()
        self._reserved: socket.socket | None = _bound(0)
        self._listening: asyncio.Server | None = None
        self.port: Final[int] = self._reserved.getsockname()[1]
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()
        self.accept()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Reset all connections and give the port back; raises what failed inside. Closing twice is fine."""
        if self.loop.is_closed():
            return
        self._do(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        if self._failure is not None:
            raise RuntimeError("the proxy failed inside") from self._failure

    def cut(self) -> int:
        """Reset (RST) every connection on both sides and say how many; new ones are welcome."""
        return self._do(self._cut())

    def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED) and keep the port; those that are open live on."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Take new connections again."""
        self._do(self._accept())

    def freeze(self) -> None:
        """Go silent both ways without closing anything, as if the peer had vanished: even a FIN is swallowed.

        What is sent meanwhile is delivered by ``thaw()``, as a network does when it heals; ``cut()`` loses it.
        New connections are accepted and hear nothing.
        """
        self._call(self._hush, True)

    def thaw(self) -> None:
        """End ``freeze()`` and deliver what was held back."""
        self._call(self._hush, False)

    def delay(self, seconds: float, direction: Direction | None = None) -> None:
        """Let every byte arrive ``seconds`` later, in one direction or (None) in both; 0 ends it.

        With both, a round trip takes ``2 * seconds`` longer. Bandwidth stays; the resolution is 1 ms.
        """
        directions: tuple[Direction, ...] = (direction,) if direction else ("to_server", "to_client")
        self._call(self.delays.update, dict.fromkeys(directions, seconds))

    # What follows runs in the loop's thread.

    def reach(self, link: Link) -> None:
        task = self.loop.create_task(self._reach(link))
        self._reaching.add(task)
        task.add_done_callback(self._reached)

    def opened(self, link: Link) -> None:
        self._links.add(link)
        self.counts["connected"] += 1

    def closed(self, link: Link) -> None:
        self._links.discard(link)

    def _new_link(self) -> Link:
        return Link(self)

    def _new_client(self) -> Side:
        return self._new_link().client

    async def _reach(self, link: Link) -> None:
        try:
            await self.loop.create_connection(lambda: link.server, *self.upstream)
        except OSError:
            self.counts["unreachable"] += 1
            link.drop()

    def _reached(self, task: asyncio.Task[None]) -> None:
        self._reaching.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()

    def _hush(self, frozen: bool) -> None:
        self.frozen = frozen
        for link in list(self._links):
            link.refresh()

    async def _accept(self) -> None:
        if self._reserved is not None:
            sock, self._reserved = self._reserved, None
            self._listening = await self.loop.create_server(self._new_client, sock=sock)

    async def _refuse(self) -> None:
        if self._listening is not None:
            # Bound but not listening: the kernel refuses for us, and nobody else is given the port.
            self._reserved = _bound(self.port)
            self._listening.close()
            self._listening = None

    async def _cut(self) -> int:
        links = [link for link in self._links if not link.dropped]
        self.counts["cut"] += len(links)
        for link in links:
            link.drop()
        await asyncio.gather(*(s.gone for link in self._links for s in (link.client, link.server) if not s.shut))
        return len(links)

    async def _close(self) -> None:
        await self._refuse()
        if self._reserved is not None:
            self._reserved.close()
        for task in self._reaching:
            task.cancel()
        await asyncio.gather(*self._reaching, return_exceptions=True)
        await self._cut()

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failure = self._failure or context.get("exception") or RuntimeError(context["message"])

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self.loop.is_closed():
            work.close()
            raise RuntimeError("this proxy is closed")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        async def call() -> T:
            return function(*arguments)

        return self._do(call())


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # refuse() binds again before it lets go
    sock.bind((_HOST, port))
    return sock


@dataclass
class _Fault:
    when: When
    text: str | None
    skip: int

    def meets(self, sql: str, commit: bool) -> bool:
        wanted = (self.text is None or self.text in sql) if self.when == "at_statement" else commit
        if wanted and self.skip:
            self.skip -= 1
            return False
        return wanted


class PostgresProxy(Proxy):
    """A ``Proxy`` that reads the client's side of Postgres's protocol and can break it at one exact message.

    ``arm()`` sets one fault for the next matching statement of any connection. It happens once; ``fired`` is set
    and ``counts[when]`` raised after it has happened. ``counts`` also has ``statement`` and ``commit`` (executions
    seen), ``commit_refused`` and ``delivered``. Simple and extended protocol, prepared statements and pipelines
    are understood; an implicit commit (autocommit) is no COMMIT. Requests for TLS are refused, so the upstream
    must let this machine in without it and the client may not insist (``sslmode=require``).

    ``in_front_of(dsn)`` builds one from a SQLAlchemy URL, and ``dsn`` is that URL through the proxy.
    """

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self._armed: _Fault | None = None
        self._holding: deque[tuple[PostgresLink, asyncio.Future[str]]] = deque()
        self._url: URL | None = None
        self.fired: Final = threading.Event()
        super().__init__(upstream_host, upstream_port)

    @classmethod
    def in_front_of(cls, dsn: str) -> Self:
        """A proxy for the server of a SQLAlchemy URL; ``ConfigError`` unless that names exactly one host."""
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
        """The URL given to ``in_front_of``, leading through the proxy; the password is in it."""
        if self._url is None:
            raise ConfigError("this proxy was not made by PostgresProxy.in_front_of(dsn)")
        through = self._url.difference_update_query(["host", "port"]).set(host=_HOST, port=self.port)
        return through.render_as_string(hide_password=False)

    def arm(self, when: When, text: str | None = None, *, skip: int = 0) -> None:
        """Break the next matching statement, replacing what was armed before; ``fired`` is cleared.

        - ``before_commit``: the COMMIT is not forwarded and both sides are cut. It has not taken effect; the
          server rolls back, and lets go of its locks, as soon as it notices.
        - ``after_commit``: the COMMIT is forwarded, the server's answer swallowed and the client cut. It has
          taken effect. A refused COMMIT (ROLLBACK, an error) passes through, counts as ``commit_refused``, and
          the fault waits for the next one.
        - ``after_commit_delayed``: the client is cut at once, and the COMMIT kept until ``deliver()``; meanwhile
          the transaction is open on the server with all its locks.
        - ``at_statement``: both sides are cut in front of a statement whose SQL contains ``text`` (None: of any
          statement, so that a test can try every ``skip``). The transaction is rolled back.

        ``skip`` lets that many matches pass first.

        What psycopg raises is the same in all four cases, out of ``commit()`` or ``execute()``:
        ``psycopg.OperationalError`` with ``sqlstate`` None ("server closed the connection unexpectedly"), and
        ``connection.broken`` is true. So nothing tells a COMMIT that took effect from one that did not.
        SQLAlchemy wraps it as ``sqlalchemy.exc.OperationalError`` with ``connection_invalidated`` true.
        """
        self._call(self._arm, _Fault(when, text, skip))

    def deliver(self, timeout: float = 10.0) -> str:
        """Send the oldest COMMIT held back by ``after_commit_delayed`` and give the server's answer.

        ``"COMMIT"``; ``"ROLLBACK"``; ``"ERROR"`` and an SQLSTATE; or ``"CLOSED"`` if the server had ended the
        connection before. Raises ``TimeoutError`` after ``timeout`` seconds, ``RuntimeError`` if none is held.
        """
        return self._do(self._deliver(timeout))

    # What follows runs in the loop's thread.

    def meet(self, link: PostgresLink, sql: str, piece: pgwire.Piece) -> bool:
        """Count the statement and break it if it is the one; True says: do not forward it."""
        commit = pgwire.is_commit(sql)
        self.counts["statement"] += 1
        self.counts["commit"] += commit
        fault = self._armed
        if fault is None or not fault.meets(sql, commit):
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

    def _arm(self, fault: _Fault) -> None:
        self._armed = fault
        self.fired.clear()

    def _happened(self, fault: _Fault) -> None:
        self.counts[fault.when] += 1
        self.loop.call_soon(self.fired.set)  # behind the closing of sockets, which waits in the same queue

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
