"""What a reload leaves out of the ranges that were given up: nothing that a worker has applied, before or since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from seekpoint.jobs.staging.lost_ranges import Lost, Reset, Span, not_applied
from seekpoint.records import Partition

AT, ID, OTHER = Partition("t", 0), uuid4(), uuid4()


def moment(number: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)


def given_up(start: int, end: int | None, seconds: int, reason: str = "operator", topic_id: UUID = ID) -> Lost:
    return Lost(AT, topic_id, start, end, reason, moment(seconds))


def reset(start: int, to: int, seconds: int) -> Reset:
    return Reset(AT, start, to, moment(seconds))


def taken_back(start: int, to: int, seconds: int) -> list[Reset]:
    """A reset that rebuilt the tables has two rows."""
    return [reset(start, to, seconds), Reset(AT, start, to, moment(seconds), takes_back=True)]


def left(lost: list[Lost], resets: list[Reset], first: int = 0) -> list[Span]:
    ranges = list(not_applied(lost, resets, {AT: ID}, {AT: first}))
    assert all(partition == AT for partition, _ in ranges)
    return [span for _, span in ranges]


def test_a_forward_reset_leaves_its_range_out() -> None:
    assert left([given_up(100, 200, 1)], [reset(100, 200, 2)]) == [(100, 200)]


def test_a_reset_that_was_made_from_python_has_a_reason_of_its_own() -> None:
    """A reset with `lost="poison"`: what was applied before is kept as after any other reset."""
    lost = [given_up(50, 100, 3, "poison")]
    assert left(lost, [reset(100, 50, 1), reset(50, 100, 4)]) == []
    assert left([given_up(100, 101, 1, "poison")], [reset(100, 101, 2)]) == [(100, 101)]


def test_what_was_applied_before_a_reset_that_is_undone_is_kept() -> None:
    """100 was the position: a reset to 50 and one back to 100 give nothing up."""
    assert left([given_up(50, 100, 3)], [reset(100, 50, 1), reset(50, 100, 4)]) == []


def test_what_is_before_the_first_offset_was_never_applied() -> None:
    """The group began at 70: of a reset to 50 that is undone, 50 to 69 are given up."""
    assert left([given_up(50, 100, 3)], [reset(100, 50, 1), reset(50, 100, 4)], first=70) == [(50, 70)]


def test_of_a_range_that_was_partly_applied_the_rest_is_left_out() -> None:
    assert left([given_up(60, 150, 3)], [reset(100, 50, 1), reset(60, 150, 4)]) == [(100, 150)]


def test_what_was_skipped_twice_was_never_applied() -> None:
    lost = [given_up(10, 100, 1), given_up(10, 100, 5)]
    assert left(lost, [reset(10, 100, 2), reset(100, 10, 3), reset(10, 100, 6)]) == [(10, 100), (10, 100)]


def test_what_the_position_was_put_back_into_is_read_again() -> None:
    lost = [given_up(10, 100, 1)]
    assert left(lost, [reset(10, 100, 2), reset(140, 40, 3)]) == [(10, 40)]
    assert left(lost, [reset(10, 100, 2), reset(140, 40, 3), reset(60, 300, 4)]) == [(10, 40), (60, 100)]


def test_resets_of_an_earlier_topic_say_nothing_of_this_one() -> None:
    """After the earlier topic was at 500, the new one begins at 0, and is reset from 20 to 80."""
    lost = [given_up(500, None, 3, "recreated", OTHER), given_up(20, 80, 6)]
    assert left(lost, [reset(900, 10, 1), reset(500, 0, 4), reset(20, 80, 7)]) == [(20, 80)]


def test_what_was_taken_back_was_not_applied() -> None:
    lost = [given_up(50, 100, 3)]
    assert left(lost, [*taken_back(100, 50, 1), reset(50, 100, 4)]) == [(50, 100)]
    assert left(lost, [*taken_back(100, 80, 1), reset(80, 50, 2), reset(50, 100, 4)]) == [(80, 100)]
    assert left(lost, [*taken_back(100, 50, 1), reset(50, 100, 4), reset(120, 70, 5)]) == [(50, 70)]
    assert left(lost, [reset(50, 100, 4), *taken_back(120, 70, 5)]) == [(50, 70)]


def test_what_retention_has_taken_stays_lost_unless_it_was_put_back() -> None:
    lost = [given_up(10, 100, 2, "retention")]
    assert left(lost, [reset(300, 5, 1)]) == [(10, 100)]
    assert left(lost, [reset(300, 40, 3)]) == [(10, 40)]
    assert left([given_up(10, None, 2, "retention")], [reset(300, 40, 3)]) == [(10, 40)]
