"""The search for what fails in a part, by numbers alone: what is run, what is found, and where it resumes."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from hypothesis import given
from hypothesis import strategies as st

from seekpoint.worker.bisect import (
    CALM,
    FEW_STRIDES,
    LEAST,
    SHARE,
    FailedRecords,
    PartFailure,
    StatementSize,
    Strides,
    bisect,
)


class Part:
    """Records of which some fail; ``applied`` are those that did not, in order."""

    def __init__(self, bad: Collection[int], *, most: int = 10**9) -> None:
        self.bad, self.most = frozenset(bad), most
        self.runs = 0
        self.applied: list[int] = []

    def run(self, part: Sequence[int]) -> PartFailure[str] | None:
        self.runs += 1
        if self.bad & set(part):
            return PartFailure("bad")
        if len(part) > self.most:
            return PartFailure("too long", was_cancelled=True)
        self.applied += part
        return None


@given(n=st.integers(1, 200), bad=st.sets(st.integers(0, 199)))
def test_those_that_fail_are_found_in_order_and_all_others_are_applied_once(n: int, bad: set[int]) -> None:
    bad = {index for index in bad if index < n}
    part = Part(bad)
    failed: list[FailedRecords[str]] = []
    for failure in bisect(n, part.run):
        assert part.applied == [index for index in range(failure.indexes[0]) if index not in bad], (
            "those before it, first"
        )
        failed.append(failure)
    assert [failure.indexes for failure in failed] == [(index,) for index in sorted(bad)]
    assert part.applied == [index for index in range(n) if index not in bad]


@given(st.integers(1, 10_000), st.data())
def test_one_costs_about_log2_runs(n: int, data: st.DataObject) -> None:
    part = Part({data.draw(st.integers(0, n - 1))})
    assert len(list(bisect(n, part.run))) == 1
    assert part.runs <= math.log2(n) + 3 + FEW_STRIDES


def test_named_records_need_no_search() -> None:
    left = {2, 7}

    def run(part: Sequence[int]) -> PartFailure[str] | None:
        return PartFailure("named", named=(7, 2)) if left & set(part) else None

    def admitted(part: range, again: bool) -> Sequence[int]:
        return [n for n in part if not again or n not in (2, 7)]

    (failure,) = bisect(9, run, admitted=admitted)
    assert (failure.indexes, failure.resume_at) == ((7, 2), 0)


def test_what_is_known_of_all_is_not_run_again() -> None:
    part = Part({3})
    assert [failure.indexes for failure in bisect(4, part.run, known=PartFailure("bad"))] == [(3,)]
    assert part.runs == 3, "0 to 1, 2, 3"


def test_a_part_that_fails_only_as_a_whole_is_applied_and_its_size_is_known() -> None:
    part, strides = Part(set(), most=3), Strides()
    failures = list(bisect(16, part.run, strides))
    assert (failures[0].indexes, failures[0].too_many) == ((), 4)
    assert part.applied == [*range(16)]
    assert strides.expects_failures


def test_a_wait_for_a_lock_says_nothing_of_the_size() -> None:
    def run(part: Sequence[int]) -> PartFailure[str] | None:
        return PartFailure("lock", was_cancelled=True, waited=True) if len(part) > 1 else None

    assert {failure.too_many for failure in bisect(8, run)} == {None}


def test_an_error_that_is_found_alone_is_that_records_own() -> None:
    def run(part: Sequence[int]) -> PartFailure[str] | None:
        return PartFailure("the part's") if len(part) > 1 else PartFailure("its own") if part[0] == 1 else None

    failures = list(bisect(2, run))
    assert [(failure.indexes, failure.error) for failure in failures] == [((1,), "its own")]


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


def test_parts_are_longer_where_failures_are_named() -> None:
    """One in a hundred, named: a part is run in vain once, so parts of the whole distance are the cheapest."""
    left, sizes, applied = set(range(99, 10_000, 100)), list[int](), list[int]()

    def run(part: Sequence[int]) -> PartFailure[str] | None:
        sizes.append(len(part))
        if named := sorted(left & set(part))[:1]:
            return PartFailure("named", tuple(named))
        applied.extend(part)
        return None

    def admitted(part: range, again: bool) -> Sequence[int]:
        return [n for n in part if not again or n not in indexes]

    indexes: set[int] = set()
    for failure in bisect(10_000, run, admitted=admitted):
        indexes |= {*failure.indexes}
        left -= indexes
    assert applied == [n for n in range(10_000) if n not in indexes]
    assert len(indexes) == 100
    assert len(sizes) < 100 * 3, "about two runs for each failure; with parts of a quarter, five"


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
