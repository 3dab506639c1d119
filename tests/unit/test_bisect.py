"""The search for what fails in a part, by numbers alone: what is run, what is found, and where it resumes."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from seekpoint.worker.bisect import CALM, FEW_STRIDES, LEAST, SHARE, Found, PartFailure, StatementSize, Strides, bisect


class Part:
    """Records of which some fail; ``applied`` are the ranges that did not."""

    def __init__(self, bad: set[int], *, most: int = 10**9) -> None:
        self.bad, self.most = bad, most
        self.runs = 0
        self.applied: list[tuple[int, int]] = []

    def run(self, low: int, high: int) -> PartFailure[str] | None:
        self.runs += 1
        if self.bad & set(range(low, high)):
            return PartFailure("bad")
        if high - low > self.most:
            return PartFailure("too long", is_timeout=True)
        self.applied.append((low, high))
        return None


def found_in(part: Part, n: int) -> Found[str]:
    failure = part.run(0, n)
    assert failure is not None
    return bisect(n, part.run, failure)


@given(n=st.integers(1, 200), bad=st.sets(st.integers(0, 199), min_size=1))
def test_the_first_that_fails_is_found_and_all_before_it_are_applied_once(n: int, bad: set[int]) -> None:
    bad = {at % n for at in bad}
    part, first = Part(bad), min(at % n for at in bad)
    found = found_in(part, n)
    assert found.indexes == (first,)
    applied = sorted(at for low, high in part.applied for at in range(low, high))
    assert applied == [at for at in range(found.resume_at) if at != first]
    assert found.resume_at > first
    assert not {*range(first + 1, found.resume_at)} & bad


@given(st.integers(1, 10_000), st.data())
def test_one_costs_about_log2_runs(n: int, data: st.DataObject) -> None:
    part = Part({data.draw(st.integers(0, n - 1))})
    found_in(part, n)
    assert part.runs <= math.log2(n) + 3


def test_named_records_need_no_search() -> None:
    part = Part(set())
    found = bisect(9, part.run, PartFailure("named", named=(7, 2)))
    assert (part.runs, found.indexes, found.resume_at) == (0, (7, 2), 0)


def test_a_part_that_fails_only_as_a_whole_is_applied_and_its_size_is_known() -> None:
    part = Part(set(), most=3)
    found = found_in(part, 16)
    assert (found.indexes, found.too_many) == ((), 4)
    assert part.applied[0] == (0, 2)
    assert found.resume_at == sum(high - low for low, high in part.applied)


def test_a_wait_for_a_lock_says_nothing_of_the_size() -> None:
    def run(low: int, high: int) -> PartFailure[str] | None:
        return PartFailure("lock", is_timeout=True, waited=True) if high - low > 1 else None

    assert bisect(8, run, PartFailure("too long", is_timeout=True)).too_many is None


def test_an_error_that_is_found_alone_is_that_records_own() -> None:
    failures = {(0, 1): PartFailure("its own")}
    found = bisect(2, lambda low, high: failures.get((low, high)), PartFailure("the part's"))
    assert (found.indexes, found.error) == ((0,), "its own")


def test_strides_follow_the_distance_between_failures_and_are_forgotten_after_a_calm() -> None:
    strides = Strides()
    strides.begin(1000)
    assert strides.part_end(0) == 1000, "nothing is known: the whole batch"
    strides.failed([99], 100, None)
    assert strides.part_end(100) == 100 + max(4 * 100, 900 // FEW_STRIDES), "one may be the only one"
    expected = [strides.expects_failures]
    strides.failed([799], 800, None)
    assert strides.part_end(800) == 800 + 799 // 2 // SHARE
    strides.end()
    expected.append(strides.expects_failures)
    for _ in range(CALM * SHARE):
        strides.begin(100)
        strides.end()
    assert [*expected, strides.expects_failures] == [False, True, False]


def test_a_stride_is_never_very_short() -> None:
    strides = Strides()
    strides.begin(100)
    strides.failed([1, 3], 4, None)
    assert strides.part_end(4) == 4 + LEAST


def test_a_size_grows_after_full_parts_and_later_where_that_was_too_many() -> None:
    size = StatementSize()

    def after(parts: int, of: int) -> int | None:
        for _ in range(parts):
            size.written(of)
        return size.most

    size.shorten(100)
    assert after(StatementSize.FIRST, 49) == 50, "a smaller part says nothing"
    assert after(StatementSize.FIRST, 50) is None
    size.shorten(1000)
    size.shorten(500)
    assert after(StatementSize.FIRST, 250) == 500
    size.shorten(500)
    assert after(2 * StatementSize.FIRST - 1, 250) == 250
    assert after(1, 250) == 500
