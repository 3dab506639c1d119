"""Knobs: numbers that must not change a test's result, drawn for each run.

The seed alone decides the value of each knob, so all processes of the run, and those that tests start, have the same
values. If a knob has n values, n seeds in a row draw each of them once. A run draws its seed and prints it;
``SEEKPOINT_KNOBS=7`` repeats the run of seed 7, and ``none`` keeps Seekpoint's defaults. ``make soak`` takes one seed
after the other.

The fixture ``knobs`` sets the values for a test; fixtures that run workers request it. Values that a test gives
explicitly are kept. ``@pytest.mark.pins("chunk")`` keeps Seekpoint's default in a test of that number. At the end a run
reports in how many tests each knob's value was used (in the test's process).
"""

from __future__ import annotations

import json
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from random import Random
from typing import Any

import pytest
from sqlalchemy import Engine, NullPool, create_engine

from seekpoint import Pipeline, Retry
from seekpoint.kafka import config as kafka_config
from seekpoint.kafka import ranges
from seekpoint.pipeline.policy import Limits
from seekpoint.worker import apply, loop, reader
from seekpoint.worker.loop import Loop
from seekpoint.worker.open_batch import OpenBatch
from seekpoint.worker.reader import Reader

VARIABLE = "SEEKPOINT_KNOBS"
NONE = "none"
AHEAD = reader.AHEAD
_DRAWN = "SEEKPOINT_KNOBS_DRAWN"  # the values as JSON, for processes that a test starts

VALUES: Mapping[str, tuple[Any, ...]] = {
    "protocol": ("eager", "cooperative", "consumer"),
    "batch_records": (3, 10_000, 1_000_000),  # one record a batch, or a poll, doubles a run's time
    "batch_bytes": (1000, 16 * 1024 * 1024, 1 << 40),
    "chunk": (7, 500),
    "partition_fetch": (1, 1000, 1 << 20),  # bytes of one partition that a fetch asks for; a whole batch comes anyhow
    "queued_messages": (1, 100_000),  # below so many messages in the client's queue, it fetches more
    "read_ahead": (False, True),
    "small_batch": (0, 1, 100),  # records that are sent in one round trip with hold and advance, at most
    "pool": ("none kept", "default"),
    "jitter": (0.0, 0.5, 1.0),
}
"""Each knob's legal values: Seekpoint's default and extremes."""

BATCH = ("batch_records", "batch_bytes", "chunk", "partition_fetch", "queued_messages")
"""What together says how many records a batch has: ``@pytest.mark.pins("batch")``."""

_PROTOCOLS: Mapping[str, Mapping[str, str]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
_FIXES_PROTOCOL = {"group.protocol", "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms"}


def draw(seed: int) -> dict[str, Any]:
    """Each knob's value in a run with this seed."""
    drawn = {}
    for name, values in VALUES.items():
        block, number = divmod(seed, len(values))
        drawn[name] = Random(f"{name} {block}").sample(values, len(values))[number]
    if drawn["partition_fetch"] < 1 << 20:
        # librdkafka 2.16 fetches partitions in the same order again after its queue was full. If an answer has one
        # partition only, the others get nothing as long as the first one has records.
        drawn["queued_messages"] = max(VALUES["queued_messages"])
    return drawn


class Knobs:
    """Sets the drawn values for a test; ``reached`` are the knobs whose value was used."""

    def __init__(self, drawn: Mapping[str, Any], patch: pytest.MonkeyPatch) -> None:
        self.drawn, self.reached = drawn, set[str]()
        self._patch = patch
        for name in ("batch_records", "batch_bytes"):
            self._set(name, Limits.__init__.__kwdefaults__)
        self._set("jitter", Retry.__init__.__kwdefaults__)
        if "jitter" in drawn:
            defaults: Any = Pipeline.__init__.__kwdefaults__
            patch.setitem(defaults, "retry", Retry())  # its own was made before
        for user in (reader, loop):
            self._set("chunk", vars(user), "CHUNK")
        self._set("chunk", ranges.read_range.__kwdefaults__)
        self._set("chunk", ranges.RangeFollower.read_to.__kwdefaults__)
        self._set("small_batch", vars(apply), "MOST_RECORDS_IN_ONE_INSERT")
        if drawn.get("read_ahead") is False:
            patch.setitem(vars(reader), "AHEAD", 0)
        self._set("partition_fetch", kafka_config.DEFAULTS, "max.partition.fetch.bytes")
        self._set("queued_messages", kafka_config.DEFAULTS, "queued.min.messages")
        if drawn:
            self._wrap_uses()

    def _set(self, name: str, place: Any, key: str | None = None) -> None:
        if name in self.drawn:
            self._patch.setitem(place, key or name, self.drawn[name])

    def _wrap_uses(self) -> None:
        """Note where a value is used; two wrappers also set it (protocol, reading ahead)."""
        self._wrap(vars(loop), "consumer_config", self._consumer_config)
        self._wrap(Loop, "run", self._run)
        self._wrap(Reader, "read", self._read)
        self._wrap(Reader, "has_more", self._has_more)
        self._wrap(OpenBatch, "closes_within", self._closes_within)
        self._wrap(Retry, "wait", self._wait)

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        inner = owner[name] if isinstance(owner, dict) else getattr(owner, name)

        @wraps(inner)
        def wrapper(*args: Any, **options: Any) -> Any:
            return around(inner, *args, **options)

        if isinstance(owner, dict):
            self._patch.setitem(owner, name, wrapper)
        else:
            self._patch.setattr(owner, name, wrapper)

    def _note(self, name: str, value: Any) -> None:
        if name in self.drawn and self.drawn[name] == value:
            self.reached.add(name)

    def _consumer_config(self, inner: Any, config: Mapping[str, Any], **options: Any) -> Any:
        protocol = self.drawn.get("protocol")
        if protocol is not None and not _FIXES_PROTOCOL & config.keys():
            config = {**config, **_PROTOCOLS[protocol]}
            self.reached.add("protocol")
        result = inner(config, **options)
        self._note("partition_fetch", result.get("max.partition.fetch.bytes"))
        self._note("queued_messages", result.get("queued.min.messages"))
        return result

    def _run(self, inner: Any, worker: Any) -> Any:
        self._note("batch_records", worker._limits.batch_records)
        self._note("batch_bytes", worker._limits.batch_bytes)
        if "read_ahead" in self.drawn and worker._limits.batch_records < min(AHEAD, vars(reader)["CHUNK"]):
            self.reached.add("read_ahead")  # small batches: so many records are read at once, or none
        return inner(worker)

    def _read(self, inner: Any, *args: Any) -> Any:
        chunk = inner(*args)
        if chunk is not None:
            self._note("chunk", vars(reader)["CHUNK"])
        return chunk

    def _has_more(self, inner: Any, *args: Any) -> Any:
        has_more = inner(*args)
        if not has_more or "read_ahead" not in self.drawn:
            return has_more
        self.reached.add("read_ahead")
        return self.drawn["read_ahead"]

    def _closes_within(self, inner: Any, batch: OpenBatch, records: int, size: int) -> Any:
        self._note("small_batch", records)
        return inner(batch, records, size)

    def _wait(self, inner: Any, retry: Retry, *args: Any) -> Any:
        self._note("jitter", retry.jitter)
        return inner(retry, *args)

    @contextmanager
    def pooled(self, engine: Engine) -> Iterator[Engine]:
        """An engine for one worker, with the drawn kind of pool; ``engine`` itself if no pool was drawn."""
        pool = self.drawn.get("pool")
        if pool is not None:
            self.reached.add("pool")
        if pool != "none kept":
            yield engine
            return
        own = create_engine(engine.url, poolclass=NullPool)
        yield own
        own.dispose()


def turn_in_child() -> None:
    """Set the values of the test that started this process, for the whole process."""
    if _DRAWN in os.environ:
        Knobs(json.loads(os.environ[_DRAWN]), pytest.MonkeyPatch())


@pytest.fixture
def knobs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Knobs]:
    """Set the drawn values in the test and its processes, except those that it pins."""
    names = [name for mark in request.node.iter_markers("pins") for name in mark.args]
    pinned = {knob for name in names for knob in (BATCH if name == "batch" else [name])}
    assert pinned <= VALUES.keys(), f"pins({', '.join(sorted(pinned - VALUES.keys()))}): no knob has this name"
    if os.environ[VARIABLE] == NONE:
        yield Knobs({}, monkeypatch)
        return
    drawn = draw(int(os.environ[VARIABLE]))
    knobs = Knobs({name: value for name, value in drawn.items() if name not in pinned}, monkeypatch)
    monkeypatch.setenv(_DRAWN, json.dumps(knobs.drawn))
    yield knobs
    request.node.user_properties += [(VARIABLE, name) for name in sorted(knobs.reached)]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "pins(names): knobs that keep Seekpoint's default: they are the test's subject")
    # Before xdist starts its processes.
    seed = os.environ.setdefault(VARIABLE, str(secrets.randbelow(1_000_000)))
    if seed == NONE:
        return
    if not seed.isdecimal():
        raise pytest.UsageError(f"{VARIABLE}={seed}: give a seed (a whole number), or '{NONE}'")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(config, int(seed)))


class _Report:
    """Reports the seed, and in how many tests each knob's value was used."""

    def __init__(self, config: pytest.Config, seed: int) -> None:
        self._seed, self._tests = seed, Counter[str]()
        self._is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword

    def pytest_report_header(self) -> str:
        return f"knobs: {VARIABLE}={self._seed}: {', '.join(f'{n}={v}' for n, v in draw(self._seed).items())}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._tests.update(str(name) for key, name in report.user_properties if key == VARIABLE)

    def _unused(self) -> list[str]:
        return [name for name in VALUES if not self._tests[name]] if self._is_whole else []

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._unused() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"knobs: repeat with {VARIABLE}={self._seed}", red=bool(self._unused()))
        for name, value in draw(self._seed).items():
            if self._tests[name] or self._is_whole:
                terminalreporter.write_line(f"{name}={value}: {self._tests[name] or 'no'} tests used it")
