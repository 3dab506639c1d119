"""A proxied connection of Postgres that is read along."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from support import pgwire
from support.proxy_links import Controls, Link, Side


class Reader(Controls, Protocol):
    """Who is told of each statement before the server sees it."""

    def meet(self, link: PostgresLink, sql: str, piece: pgwire.Piece) -> bool:
        """Break the statement if it is the one; True says: do not forward it."""


class PostgresLink(Link):
    """A link that reads along: the client's statements, and the server's answer while one is waited for."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self._reader = reader
        self._greeting: pgwire.Greeting | None = pgwire.Greeting()
        self._frontend = pgwire.Framer(pgwire.FRONTEND)
        self._backend = pgwire.Framer()
        self._statements = pgwire.Statements()
        self._answered: Callable[[str], bool] | None = None
        self.held: bytes | None = None

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
            if sql is None or not self._reader.meet(self, sql, piece):
                self.send_server(piece.raw)
            if self.dropped or self.held is not None:
                return  # what the client sent behind it is lost with the connection

    def from_server(self, data: bytes) -> None:
        for piece in self._backend.feed(data):
            if piece.kind and self._answered is not None and self._answered(pgwire.outcome(piece)):
                self.ignore_answers()
            if self.held is None and not self.dropped:
                self.send_client(piece.raw)

    def watch_answers(self, answered: Callable[[str], bool]) -> None:
        """Show each outcome of a statement to ``answered``, until it returns True."""
        self._backend.wanted, self._answered = pgwire.ANSWERS, answered

    def ignore_answers(self) -> None:
        self._backend.wanted, self._answered = b"", None

    def hold(self, held: bytes) -> None:
        """Reset the client only; the server goes on waiting for it."""
        self.held = held
        self.client.reset()

    def lost(self, side: Side) -> None:
        if side is self.server and self._answered is not None:
            self._answered("CLOSED")
        if self.held is None or side is self.server:
            super().lost(side)
