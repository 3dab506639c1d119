"""A TCP proxy that breaks connections on purpose, for any protocol.

It runs an event loop in a separate thread, on a free loopback port, without encryption.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, Literal, Self, TypeVar

T = TypeVar("T")

Direction = Literal["to_server", "to_client"]
_QUEUE_LIMIT: Final = 16 * 1024 * 1024  # bytes held per direction; beyond it the sender has to wait
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # linger for 0 s: close sends RST and drops what is unsent
HOST: Final = "127.0.0.1"


class Proxy:
    """Forwards a free loopback ``port`` to the upstream until a method injects a fault; for tests and benchmarks.

    ``counts`` has the numbers of ``connected``, ``cut`` and ``unreachable`` connections (the upstream could not be
    reached, so the client was reset). Methods return when their work is done, and may be called from any thread. The
    end of the block resets open connections and raises ``RuntimeError`` if the proxy itself has failed.
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
        """Reset all connections and free the port; raises if the proxy has failed. May be called twice."""
        if self.loop.is_closed():
            return
        self._do(self._close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        if self._failure is not None:
            raise RuntimeError("the proxy failed inside") from self._failure

    def cut(self) -> int:
        """Reset (RST) every connection on both sides, and return how many; new connections are accepted."""
        return self._do(self._cut())

    def refuse(self) -> None:
        """Refuse new connections (ECONNREFUSED) and keep the port; open connections stay open."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Accept new connections again."""
        self._do(self._accept())

    def freeze(self) -> None:
        """Forward nothing in both directions, not even a FIN, without closing connections.

        ``thaw()`` delivers the bytes that were sent meanwhile, as a network does when it recovers; ``cut()`` loses
        them. New connections are accepted and get no answer.
        """
        self._call(self._hush, True)

    def thaw(self) -> None:
        """End ``freeze()`` and deliver the kept bytes."""
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
            # Bound but not listening: the kernel refuses for us, and no other process gets the port.
            self._reserved = _bound(self.port)
            for sock in self._listening.sockets:
                self.loop.remove_reader(sock)
            # A client that has connected just now: its transport is made, then its link. A closed server makes none,
            # and would leave the socket open.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
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
    sock.bind((HOST, port))
    return sock


# -- the inside of a connection: two sockets, a lane of bytes each way; all of it in the loop's thread --------------


class Side(asyncio.Protocol):
    """One socket of a link: the source of one lane, and the target of the other."""

    def __init__(self, link: Link, received: Callable[[bytes], None]) -> None:
        self._link, self._received = link, received
        self.transport: asyncio.Transport | None = None
        self._full = False
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def alive(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def full(self) -> bool:
        """Whether it takes no more bytes for now; a closed socket drops all."""
        return self._full and self.alive

    @property
    def shut(self) -> bool:
        """Whether the socket is closed, or was never connected."""
        return self.transport is None or self.gone.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.connected(self)

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def eof_received(self) -> bool:
        self._link.ended(self)
        return True  # the other direction stays open

    def pause_writing(self) -> None:
        self._full = True
        self._link.gate()

    def resume_writing(self) -> None:
        self._full = False
        self._link.gate()

    def connection_lost(self, _error: Exception | None) -> None:
        self.gone.set_result(None)
        self._link.lost(self)

    def read(self, wanted: bool) -> None:
        if self.transport is not None and self.alive:
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def reset(self) -> None:
        if self.transport is not None and not self.gone.done():
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.transport.abort()


class Lane:
    """Bytes on their way in one direction, each chunk with its earliest time of arrival; b"" is the end."""

    def __init__(self, link: Link, target: Side, direction: Direction) -> None:
        self._link, self._proxy, self.target, self._direction = link, link.proxy, target, direction
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.size = 0
        self.finished = False

    def push(self, data: bytes) -> None:
        self._queue.append((self._proxy.loop.time() + self._proxy.delays[self._direction], data))
        self.size += len(data)
        self.drain()

    def drain(self) -> None:
        """Write the chunks that are due, and schedule the rest."""
        transport, loop = self.target.transport, self._proxy.loop
        if transport is not None and self.target.alive and not self._proxy.frozen:
            while self._queue and self._queue[0][0] <= loop.time():
                _, data = self._queue.popleft()
                self.size -= len(data)
                if data:
                    transport.write(data)
                else:
                    self._end(transport)
            if self._queue and self._timer is None:
                self._timer = loop.call_at(self._queue[0][0], self._tick)
        self._link.gate()

    def _end(self, transport: asyncio.Transport) -> None:
        try:
            transport.write_eof()
        except OSError:  # the target has reset its connection, and the loop has not said so yet
            self._link.drop()
        else:
            self.finished = True

    def _tick(self) -> None:
        self._timer = None
        self.drain()


class Link:
    """One client's connection, and the proxy's connection to the server for it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.client = Side(self, self.from_client)
        self.server = Side(self, self.from_server)
        self._to_server = Lane(self, self.server, "to_server")
        self._to_client = Lane(self, self.client, "to_client")
        self._reached = False
        self.dropped = False

    def from_client(self, data: bytes) -> None:
        self.send_server(data)

    def from_server(self, data: bytes) -> None:
        self.send_client(data)

    def send_server(self, data: bytes) -> None:
        self._to_server.push(data)

    def send_client(self, data: bytes) -> None:
        self._to_client.push(data)

    def connected(self, side: Side) -> None:
        if side is self.client:
            self.proxy.opened(self)
        if self.dropped:  # the client left while the server was being reached
            side.reset()
        else:
            self.refresh()

    def ended(self, side: Side) -> None:
        """Called when one side has sent its last bytes (FIN)."""
        (self._to_server if side is self.client else self._to_client).push(b"")

    def lost(self, _side: Side) -> None:
        """Called when one side is closed, by the proxy or by an error that the other side shall see."""
        if not (self._to_server.finished and self._to_client.finished):
            self.drop()
        if self.client.shut and self.server.shut:
            self.proxy.closed(self)

    def drop(self) -> None:
        """Reset both connections."""
        self.dropped = True
        self.client.reset()
        self.server.reset()

    def refresh(self) -> None:
        """Connect to the server and forward waiting bytes, as far as the proxy allows it now."""
        if not self._reached and not self.proxy.frozen:
            self._reached = True
            self.proxy.reach(self)
        self._to_server.drain()
        self._to_client.drain()

    def gate(self) -> None:
        """Read each side as fast as the other side takes it; close both when both have ended."""
        for side, lane in ((self.client, self._to_server), (self.server, self._to_client)):
            if self._to_server.finished and self._to_client.finished:
                assert side.transport is not None
                side.transport.close()
            else:
                side.read(not self.proxy.frozen and not lane.target.full and lane.size < _QUEUE_LIMIT)
