"""Records that the groups apply while ranges are staged: passes of bounded length apply them to the rebuilt tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from seekpoint.errors import HandlerOutdated, ReloadRefused
from seekpoint.jobs.reload import Reload, Run
from seekpoint.jobs.reload import reload as reload_module
from seekpoint.jobs.staging.local_stager import LocalStager
from support.before_cutover import applied_by, resume, settled, widen, working
from support.reload_orders import OrdersGroup, doubled, of

RECORDS = [of(n % 30, n, n) for n in range(80)]
Steps = list[tuple[str, int, int]]


class InterruptedStager(LocalStager):
    """Stages in this process; before the last range of each plan, something happens."""

    def __init__(self, reload: Reload, *happens: Callable[[], object]) -> None:
        super().__init__(reload.engine, reload.schema, reload.kafka, reload.sources)
        self.happens, self.plans = list(happens), list[list[tuple[int, int, int]]]()

    def stage(self, run: Run, tasks: Any) -> Any:
        self.plans.append([(t.range.partition.number, t.range.start, t.range.end) for t in tasks])
        if self.happens:
            self.happens.pop(0)()
        yield from super().stage(run, tasks)


def grown(orders_group: OrdersGroup, worker: Any, records: list[Any]) -> Callable[[], None]:
    return lambda: applied_by(worker, orders_group, records)


def stop_outdated(worker: Any) -> None:
    """After a cut-over: the worker drains, or has ended by itself, if it has seen the new version first."""
    with suppress(HandlerOutdated):
        worker.stop()


@pytest.fixture(autouse=True)
def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes 20 offsets of a partition, and the cut-over may follow one that left at most 5."""
    monkeypatch.setattr(reload_module, "LARGE", 20)
    monkeypatch.setattr(reload_module, "SMALL", 5)


def test_what_came_meanwhile_is_caught_up_in_passes_of_bounded_length(orders_group: OrdersGroup) -> None:
    worker = working(orders_group, RECORDS)
    progress: Steps = []
    reload = orders_group.reload(range_records=50, progress=lambda *step: progress.append(step))
    later = [of(n % 40, n, n) for n in range(80, 133)]
    stager = reload._stager = InterruptedStager(reload, grown(orders_group, worker, later))
    driver = reload.open()
    reload.stage(driver)
    assert stager.plans == [[(0, 0, 50), (0, 50, 80)]]
    assert [position.end_offset for position in reload.runs.positions(driver.run.id)] == [80, 0]
    reload.run(driver)
    stop_outdated(worker)
    assert orders_group.rows() == doubled(RECORDS + later)
    passes = [step for step in progress if step[0] == "catching_up" and step[1]]
    assert passes[:3] == [("catching_up", 20, 53), ("catching_up", 20, 33), ("catching_up", 13, 13)]
    assert progress[-1] == ("cutting over", 0, 0)


def test_dead_letters_of_what_came_meanwhile_are_left_out(orders_group: OrdersGroup) -> None:
    worker = working(orders_group, RECORDS, on_poison="dead_letter")
    reload = orders_group.reload(pipeline={"on_poison": "dead_letter"})
    later = [of(n, 7, n) for n in range(40)] + [of(500, 9_999)]
    reload._stager = InterruptedStager(reload, grown(orders_group, worker, later))
    reload.run(reload.open())
    stop_outdated(worker)
    assert orders_group.rows() == doubled(RECORDS + later[:-1])


def test_a_dead_letter_that_is_replayed_while_ranges_are_staged_comes_before_later_records(
    orders_group: OrdersGroup,
) -> None:
    """Its key has a newer row by then, which the pass of its own would have written first."""
    options: dict[str, Any] = {"on_poison": "dead_letter"}
    orders_group.execute("ALTER TABLE {schema}.orders ADD CHECK (amount <> 77)")
    first, later = [of(1), of(2, 77), of(3)], [*(of(n) for n in range(10, 40)), of(2, 5)]
    worker = working(orders_group, first, **options)

    def replay() -> None:
        orders_group.execute("ALTER TABLE {schema}.orders DROP CONSTRAINT orders_amount_check1")
        assert orders_group.new_replay(**options).replay_all().replayed == 1
        applied_by(worker, orders_group, later)
        worker.stop()

    reload = orders_group.reload(pipeline=options)
    reload._stager = InterruptedStager(reload, replay)
    reload.run(reload.open())
    assert orders_group.rows() == doubled(first + later)


def test_partitions_that_come_while_ranges_are_staged_are_caught_up_too(applied_group: OrdersGroup) -> None:
    later = [of(n, 9, n) for n in range(100, 150)]

    def wider() -> None:
        widen(applied_group, 3)
        settled(applied_group, later, partition=2)

    reload = applied_group.reload()
    stager = reload._stager = InterruptedStager(reload, wider)
    reload.run(reload.open())
    assert stager.plans == [[(0, 0, 80)]]
    assert applied_group.rows() == doubled(RECORDS + later)


def test_a_position_that_was_moved_while_ranges_were_staged_ends_the_run(applied_group: OrdersGroup) -> None:

    def rewound() -> None:
        applied_group.ledger().reset_offset(applied_group.topic, 0, 10, log=None, reason="a test")
        settled(applied_group, RECORDS)

    reload = applied_group.reload()
    reload._stager = InterruptedStager(reload, rewound)
    driver = reload.open()
    with pytest.raises(ReloadRefused, match="was reset since the run was opened"):
        reload.run(driver)
    assert reload.runs.get(driver.run.id).state == "failed"


def test_a_distance_that_does_not_shrink_ends_the_run(orders_group: OrdersGroup) -> None:
    """Workers that are faster than the passes: nothing would ever be published."""
    worker = working(orders_group, RECORDS)
    more = [of(n, 1, n) for n in range(10)]

    def on_progress(what: str, done: int, total: int) -> None:
        if what == "catching_up" and done:
            applied_by(worker, orders_group, more)

    reload = orders_group.reload(progress=on_progress)
    reload._stager = InterruptedStager(reload, grown(orders_group, worker, more))
    driver = reload.open()
    with pytest.raises(ReloadRefused, match=r"faster than the rebuild catches up: 10 passes in a row"):
        reload.run(driver)
    worker.stop()
    assert reload.runs.get(driver.run.id).state == "failed"


def test_resumed_staging_reports_what_was_done_before(applied_group: OrdersGroup) -> None:
    first = applied_group.reload(range_records=30)

    class Stopped(LocalStager):
        def stage(self, run: Run, tasks: Any) -> Any:
            yield next(iter(super().stage(run, tasks)))
            raise KeyboardInterrupt

    first._stager = Stopped(first.engine, first.schema, first.kafka, first.sources)
    driver = first.open()
    with pytest.raises(KeyboardInterrupt):
        first.stage(driver)
    progress: Steps = []
    resume(applied_group.reload(range_records=30, progress=lambda *step: progress.append(step)), driver.run.id)
    assert progress[:3] == [("staging", 30, 80), ("staging", 60, 80), ("staging", 80, 80)]
    assert applied_group.rows() == doubled(RECORDS)
