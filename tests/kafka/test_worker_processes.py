"""``seekpoint run --workers N``: children that are killed, drained, rolled, and that end with their parent."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text

from support.cli_place import TO_TABLE, Place, Process
from support.operators_account import OperatorsAccount
from support.probe import ask, free_port
from support.waiting import until

KILLS = int(os.environ.get("SEEKPOINT_KILLS", "6"))
# Seconds: a process imports everything, and so do the others that start beside it; on busy cores each takes a minute.
STARTED = 300.0
# Seconds that a claim may take in a roll: less than the session timeout there, which nothing is to wait for.
CLAIM, SESSION = 30.0, 45.0


def pids(port: int) -> list[int]:
    """Those that have joined their group, as the parent's probe says."""
    status, body = ask(port, "/live")
    return [one["pid"] for one in json.loads(body)["workers"] if one.get("ready")] if status == 200 else []


def start(place: Place, count: int, port: int, session: float = 6.0) -> Process:
    more = ["--workers", str(count), "--listen", f"127.0.0.1:{port}"]
    fast = ["--kafka", f"session.timeout.ms={session * 1000:.0f}", "--kafka", "heartbeat.interval.ms=500"]
    process = place.start("run", f"{place.module(TO_TABLE)}:pipe", *place.options(), *fast, *more)
    until(lambda: len(pids(port)) == count, f"{count} workers that are ready", STARTED)
    return process


def records(port: int, group: str) -> float:
    """How many records all processes have applied, as the parent's metrics say."""
    _, body = ask(port, "/metrics")
    families = text_string_to_metric_families(body.decode())
    values = [one.value for f in families for one in f.samples if one.name == "seekpoint_records_total"]
    assert f'group="{group}"' in body.decode() or not values
    return sum(values)


def has_replaced(port: int, killed: set[int], count: int) -> bool:
    return len(now := pids(port)) == count and not killed & set(now)


def exactly_once(place: Place, expected: list[str]) -> None:
    until(lambda: len(place.lines()) >= len(expected), "all records applied", STARTED)
    assert Counter(place.lines()) == Counter(expected), "each record once"


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_children_that_are_killed_under_load_lose_and_repeat_nothing(
    place: Place, lines: None, topic: Callable[..., str], operators_account: OperatorsAccount
) -> None:
    """Some of them while they are rolled; `make operators KILLS=20` kills so many."""
    seed = int(os.environ.get("SEED", secrets.randbelow(10**9)))
    print(f"SEED={seed}")
    chance, port = random.Random(seed), free_port()
    place.topic = topic(4)
    process = start(place, 4, port)
    expected: list[str] = []
    rolled = chance.randrange(4)
    for number in count():
        if operators_account.children_killed >= KILLS:
            break
        values: list[str | bytes] = [f"{number}-{n}" for n in range(400)]
        for partition in range(4):
            place.produce(values[partition::4], partition=partition)
        expected += map(str, values)
        if number % 10 == rolled:
            process.signal(signal.SIGHUP)
        victims = set(chance.sample(pids(port), k=chance.choice([1, 1, 2])))
        for victim in victims:
            with suppress(ProcessLookupError):  # replaced meanwhile
                os.kill(victim, signal.SIGKILL)
                operators_account.children_killed += 1
        until(partial(has_replaced, port, victims, 4), "4 workers again", STARTED)
    until(lambda: len(place.lines()) >= len(expected), "all records applied", STARTED)
    operators_account.add_rows(place.lines(), expected)
    assert records(port, place.group) > 0
    last = pids(port)
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.said
    assert all(gone(pid) for pid in last)


@pytest.mark.long
def test_metrics_are_sums_that_do_not_fall_and_sigterm_drains_all(
    place: Place, lines: None, topic: Callable[..., str]
) -> None:
    place.topic, port = topic(2), free_port()
    process = start(place, 2, port)
    place.produce(["a"], partition=0)
    place.produce(["b"], partition=1)
    exactly_once(place, ["a", "b"])
    until(lambda: records(port, place.group) == 2, "both children's records")
    [victim, _] = pids(port)
    os.kill(victim, signal.SIGTERM)
    until(partial(has_replaced, port, {victim}, 2), "another worker", STARTED)
    assert records(port, place.group) == 2
    process.wait_for("ended: exit code 0; it starts again in 0.5 s")
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.said
    assert process.said.count("drained: ") == 3


OWNERS = (
    "CREATE TABLE {schema}.owners (partition int, owner uuid, at timestamptz)",
    """CREATE FUNCTION {schema}.note_owner() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO {schema}.owners VALUES (NEW.partition, NEW.owner, clock_timestamp()); RETURN NEW; END $$""",
    """CREATE TRIGGER note_owner AFTER UPDATE OF owner ON {schema}.partition_offset FOR EACH ROW
    WHEN (OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION {schema}.note_owner()""",
)
WITHOUT = """SELECT at, lead(at) OVER (PARTITION BY partition ORDER BY at) - at AS without, owner
FROM {schema}.owners"""


def seconds_without_owner(place: Place) -> list[float]:
    """For how long no worker had a partition, each time that one was released."""
    query = f"SELECT extract(epoch FROM without) FROM ({WITHOUT}) AS o WHERE owner IS NULL AND without IS NOT NULL"
    with place.engine.connect() as connection:
        return [float(one) for one in connection.execute(text(query.format(schema=f'"{place.schema}"'))).scalars()]


@pytest.mark.long
def test_in_a_roll_under_load_no_partition_is_without_a_worker_for_longer_than_a_claim(
    place: Place, lines: None, topic: Callable[..., str]
) -> None:
    place.topic, port = topic(2), free_port()
    process = start(place, 2, port, SESSION)
    before = pids(port)
    place.sql(*OWNERS)
    process.signal(signal.SIGHUP)
    sent: list[str] = []

    def rolled() -> bool:
        sent.append(f"r{len(sent)}")
        place.produce([sent[-1]], partition=len(sent) % 2)
        return len(now := pids(port)) == 2 and not set(now) & set(before) and all(map(gone, before))

    until(rolled, "both workers replaced", STARTED)
    exactly_once(place, sent)
    gaps = seconds_without_owner(place)
    print(f"seconds without an owner: {[round(one, 3) for one in gaps]}")
    assert gaps
    assert max(gaps) < CLAIM
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.said
    assert process.said.count("drained: ") == 4, "each of the four left its group"


@pytest.mark.long
def test_a_roll_is_abandoned_onto_code_that_does_not_start_and_raises_the_version(
    place: Place, lines: None, topic: Callable[..., str]
) -> None:
    """The old workers stay; the next roll fences them, and they are replaced although they exit as outdated."""
    place.topic, port = topic(2), free_port()
    process = start(place, 2, port)
    before = pids(port)
    [source] = place.folder.glob("pipes_*.py")
    good = source.read_text(encoding="utf-8")
    source.write_text("import a_module_that_is_not_installed\n", encoding="utf-8")
    process.signal(signal.SIGHUP)
    process.wait_for("SIGHUP: abandoned, old workers continue, for the new worker 1 fails: ")
    assert "No module named 'a_module_that_is_not_installed'" in process.said
    place.produce(["after"], partition=0)
    exactly_once(place, ["after"])
    assert pids(port) == before
    source.write_text(good.replace("strict=True", "strict=True, version=2"), encoding="utf-8")
    process.signal(signal.SIGHUP)
    until(lambda: has_replaced(port, {*before}, 2) and all(map(gone, before)), "both workers replaced", STARTED)
    place.produce(["later"], partition=1)
    exactly_once(place, ["after", "later"])
    process.signal(signal.SIGTERM)
    assert process.end() == 0, process.said


@pytest.mark.long
def test_children_end_when_the_parent_is_killed(place: Place, lines: None) -> None:
    port = free_port()
    process = start(place, 2, port)
    left = pids(port)
    process.signal(signal.SIGKILL)
    process.end()
    until(lambda: all(map(gone, left)), "the children have ended")


@pytest.mark.long
def test_a_target_that_is_wrong_ends_all(place: Place, lines: None) -> None:
    process = place.start("run", f"{place.module(TO_TABLE)}:missing", *place.options(), "--workers", "2")
    assert process.end() == 2, process.said
    assert "ended for a reason that a restart does not change: all end" in process.said


@pytest.mark.long
def test_a_child_that_is_not_live_is_replaced(place: Place) -> None:
    module = place.module(
        """\
        from threading import Event
        pipe = Pipeline("{group}", topics="{topic}", value=Text(), handle=lambda tx, batch: Event().wait())
        def worker():
            kafka = {{"bootstrap.servers": "{broker}"}}
            return Worker(pipe, engine="{url}", kafka=kafka, schema="{schema}", limits=Limits(transaction_age=1))
        """
    )
    place.produce(["a"])
    process = place.start("run", f"{module}:worker", "--workers", "1")
    process.wait_for("is not live: killed")
    process.wait_for("it starts again in 0.5 s")


def test_ctrl_c_of_the_terminal_reaches_the_parent_alone(place: Place, lines: None) -> None:
    port = free_port()
    process = start(place, 1, port)
    [child] = pids(port)
    assert os.getpgid(child) != os.getpgid(process.pid)
    process.signal(signal.SIGINT)
    assert process.end() == 0, process.said
