"""Operators who edit dead letters and replay them, while faults happen to the workers and to the operators."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import create_engine

from chaos.worker.environment import PARTITIONS, Environment
from chaos.worker.load import Load
from chaos.worker.pipelines import EDITED, POISON, REFUSED, pipeline_of
from seekpoint import Limits
from seekpoint.admin import Admin, Where
from seekpoint.errors import Fenced, GroupPaused
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.records import State
from support.background import Background
from support.postgres_proxy import PostgresProxy

EVERY = 0.1  # seconds between bad records
OPERATORS = 3


class Editor(Background):
    """Produces bad records during a ``with`` block, edits their dead letters, and replays these.

    Again and again a COMMIT of an edit or a replay is not delivered, or its answer is lost.
    """

    def __init__(self, environment: Environment, load: Load, seed: int) -> None:
        super().__init__()
        self._proxy = PostgresProxy.in_front_of(environment.pair.postgres.url)
        self._engine = create_engine(self._proxy.dsn)
        pipeline = pipeline_of({**environment.what, "name": "operator"})
        admin = Admin(self._engine, limits=Limits(transaction_age=2.0))
        self._dead_letters = admin.dead_letters(pipeline, actor="operator")
        self._log, self._load, self._chance = environment.log, load, random.Random(seed)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._engine.dispose()
        self._proxy.close()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            for _ in range(self._chance.randrange(1, 5)):
                self._load.throw(self._chance.randrange(PARTITIONS), self._chance.choice((POISON, REFUSED)))
            self._proxy.arm(self._chance.choice(("before_commit", "after_commit")), "dead_letter", skip=4)
            with ThreadPoolExecutor(OPERATORS) as operators:
                list(operators.map(lambda _: self._edit_and_replay(), range(OPERATORS)))

    def _edit_and_replay(self) -> None:
        """Edit and replay the first dead letters, which the other operators may do, too."""
        try:
            for dead_letter in self._dead_letters.list(Where(states=(State.DEAD_LETTERED,)), limit=OPERATORS):
                if self._dead_letters.edit(dead_letter.id, EDITED, reason="chaos").refusal is None:
                    self._dead_letters.replay(dead_letter.id)
        except (Fenced, GroupPaused):
            return  # another operator or a reset was faster
        except Exception as error:
            if not is_transient(error):  # the server is away, or a worker has a batch open for long
                self._log.alarm(f"an operator could not edit or replay: {error!r}")
                raise
