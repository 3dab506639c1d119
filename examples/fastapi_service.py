"""A web service that also turns a topic into a table: the worker lives in the application's lifespan.

Run it with the ledger's tables in place (``seekpoint db upgrade``), a table ``orders (id bigint, item text)``, and a
topic ``orders`` of JSON objects::

    DATABASE_URL=postgresql+psycopg://… KAFKA=localhost:9092 uvicorn --factory examples.fastapi_service:make_app

The worker runs on its own thread and shares nothing with the event loop. Several processes of the service share the
topic's partitions as members of one group.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from fastapi import Depends, FastAPI, Request, Response
from sqlalchemy import Engine, create_engine, text

from seekpoint import Append, Json, Pipeline, Worker


class Order(msgspec.Struct):
    """A record's value, and a row of ``orders``."""

    id: int
    item: str


orders = Pipeline("order-service", topics="orders", value=Json(Order), sinks=[Append("orders")])


def make_app(
    engine: Engine | None = None, kafka: Mapping[str, Any] | None = None, pipeline: Pipeline = orders, **options: Any
) -> FastAPI:
    """The application; ``options`` go to the worker."""
    engine = engine or create_engine(os.environ["DATABASE_URL"], pool_pre_ping=True)
    worker = Worker(pipeline, engine=engine, kafka=kafka or {"bootstrap.servers": os.environ["KAFKA"]}, **options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.worker, app.state.engine = worker, engine
        async with worker.running():  # started before the first request; drained after the last one
            yield

    app = FastAPI(lifespan=lifespan)
    app.get("/orders/count")(count_orders)
    app.get("/health/live")(live)
    app.get("/health/ready")(ready)
    return app


def the_worker(request: Request) -> Worker:
    """The worker of this application."""
    worker = request.app.state.worker
    assert isinstance(worker, Worker)
    return worker


def count_orders(request: Request) -> dict[str, int]:
    """How many orders the table holds; a plain function, so FastAPI runs it off the event loop."""
    with request.app.state.engine.connect() as connection:
        return {"orders": connection.execute(text("SELECT count(*) FROM orders")).scalar_one()}


def live(worker: Annotated[Worker, Depends(the_worker)], response: Response) -> dict[str, Any]:
    """503 once the worker has ended: restart the process."""
    health = worker.health()
    response.status_code = 200 if health.live else 503
    return {"live": health.live, "error": None if health.error is None else str(health.error)}


def ready(worker: Annotated[Worker, Depends(the_worker)], response: Response) -> dict[str, Any]:
    """503 while Kafka or the database does not answer, or the group is paused: needs no restart."""
    health = worker.health()
    response.status_code = 200 if health.ready else 503
    return {
        "ready": health.ready,
        "trouble": health.trouble,
        "stopped": {str(partition): str(error) for partition, error in health.stopped.items()},
        "lag": sum(health.lag.values()),
    }
