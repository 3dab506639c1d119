"""The inside of a proxied connection: two sockets, a lane of bytes each way. Everything here runs in one event loop."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, Literal, Protocol

Direction = Literal["to_server", "to_client"]

_QUEUE_LIMIT: Final = 16 * 1024 * 1024  # bytes held per direction; beyond it the sender has to wait
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # linger for 0 s: close sends RST and drops what is unsent


class Controls(Protocol):
    """What a link asks of the proxy it belongs to."""

    frozen: bool
    delays: dict[Direction, float]
    loop: asyncio.AbstractEventLoop

    def reach(self, link: Link) -> None:
        """Begin to connect ``link.server``; the link is dropped if that fails."""

    def opened(self, link: Link) -> None: ...
    def closed(self, link: Link) -> None: ...


class Side(asyncio.Protocol):
    """One socket of a link: fills one lane, is the target of the other."""

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
        """It takes no more for now; a closed one takes everything and forgets it."""
        return self._full and self.alive

    @property
    def shut(self) -> bool:
        """No socket is open: never connected, or closed by now."""
        return self.transport is None or self.gone.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._link.connected(self)

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def eof_received(self) -> bool:
        self._link.ended(self)
        return True  # the other direction goes on

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
    """Bytes on their way in one direction, each chunk with the time it may arrive at; b"" is the end."""

    def __init__(self, link: Link, target: Side, direction: Direction) -> None:
        self._link, self._controls, self.target, self._direction = link, link.controls, target, direction
        self._queue: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.size = 0
        self.finished = False

    def push(self, data: bytes) -> None:
        self._queue.append((self._controls.loop.time() + self._controls.delays[self._direction], data))
        self.size += len(data)
        self.drain()

    def drain(self) -> None:
        """Write what is due, and come back for the rest."""
        transport, loop = self.target.transport, self._controls.loop
        if transport is not None and self.target.alive and not self._controls.frozen:
            while self._queue and self._queue[0][0] <= loop.time():
                _, data = self._queue.popleft()
                self.size -= len(data)
                if data:
                    transport.write(data)
                else:
                    transport.write_eof()
                    self.finished = True
            if self._queue and self._timer is None:
                self._timer = loop.call_at(self._queue[0][0], self._tick)
        self._link.gate()

    def _tick(self) -> None:
        self._timer = None
        self.drain()


class Link:
    """One client's connection together with the proxy's own to the server."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
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
            self.controls.opened(self)
        if self.dropped:  # the client left while the server was being reached
            side.reset()
        else:
            self.refresh()

    def ended(self, side: Side) -> None:
        """One side has said all it had to say (FIN)."""
        (self._to_server if side is self.client else self._to_client).push(b"")

    def lost(self, _side: Side) -> None:
        """One side is closed: by us, or by an error that the other side shall see too."""
        if not (self._to_server.finished and self._to_client.finished):
            self.drop()
        if self.client.shut and self.server.shut:
            self.controls.closed(self)

    def drop(self) -> None:
        """Reset both connections."""
        self.dropped = True
        self.client.reset()
        self.server.reset()

    def refresh(self) -> None:
        """Act on what the proxy allows now: reach for the server, pass on what waits."""
        if not self._reached and not self.controls.frozen:
            self._reached = True
            self.controls.reach(self)
        self._to_server.drain()
        self._to_client.drain()

    def gate(self) -> None:
        """Read each side as fast as the other can take it; close when both have said all."""
        for side, lane in ((self.client, self._to_server), (self.server, self._to_client)):
            if self._to_server.finished and self._to_client.finished:
                assert side.transport is not None
                side.transport.close()
            else:
                side.read(not self.controls.frozen and not lane.target.full and lane.size < _QUEUE_LIMIT)
