"""Checks the tables of each topic that a pattern matches, before the first claim of it, and declares them (I2)."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import text

from seekpoint import events
from seekpoint.errors import ConfigError
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.engine import schema_translation
from seekpoint.postgres.sqlstates import is_transient
from seekpoint.remedies import for_topic
from seekpoint.worker.assignment.resources import Resources
from seekpoint.worker.engine_checks import require_untranslated_sinks


class TopicTables:
    """The tables of one consumer's topics, if its pipeline takes them by pattern; a start checks all others."""

    def __init__(self, resources: Resources, pipeline: Pipeline | None) -> None:
        self._ledger, self._announce = resources.ledger, resources.announce
        self._pipeline = None if pipeline is None or pipeline.pattern is None else pipeline
        self._checked: set[str] = set()
        self._refusals: dict[str, str] = {}

    def refusals(self, topics: Collection[str]) -> dict[str, str]:
        """Why these topics' tables do not take their rows, by topic; declares the other topics' tables."""
        if self._pipeline is None:
            return {}
        for topic in sorted(set(topics) - self._checked):
            if (refusal := self._refusal(self._pipeline, topic)) is not None:
                self._refusals[topic] = refusal
                continue
            self._refusals.pop(topic, None)
            tables = self._pipeline.tables_of(topic, schema_translation(self._ledger.engine))
            self._ledger.declare({topic: tables})
            self._checked.add(topic)
        return {topic: self._refusals[topic] for topic in topics if topic in self._refusals}

    def _refusal(self, pipeline: Pipeline, topic: str) -> str | None:
        """Check in a transaction that is rolled back.

        A transient error (a lock, or a session with an outdated definition of the table) does not change the topic's
        result. Without an earlier result the topic counts as written, because its batches wait for the lock, too.
        """
        wait = f"{max(1, round(self._ledger.limits.claim_wait * 1000))}ms"
        try:
            with self._ledger.engine.connect() as connection:
                connection.execute(text("SELECT set_config('lock_timeout', :wait, true)"), {"wait": wait})
                pipeline.check_topic(connection, topic)
            require_untranslated_sinks(pipeline.sinks_of(topic), self._ledger.engine)
        except ConfigError as error:
            return for_topic(error.text, topic)
        except Exception as error:
            if not is_transient(error):
                raise
            if topic not in self._refusals:
                self._announce(events.DatabaseTrouble(error=error))
        else:
            return None
        return self._refusals.get(topic)
