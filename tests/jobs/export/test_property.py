"""Random logs, random exports, random retention: the chain is always the log."""

from __future__ import annotations

import os
import random

import pytest

from seekpoint.records import RawRecord
from support.archive import ArchivedGroup, records
from support.log_changes import in_transactions


@pytest.mark.long
def test_archive_and_log_are_one_log(archived_group: ArchivedGroup) -> None:
    seed = int(os.environ.get("SEEKPOINT_SEED", "0")) or random.randrange(10**6)
    print(f"SEEKPOINT_SEED={seed}")
    chance = random.Random(seed)
    name = archived_group.topic()
    end, cut, reached = 0, 0, {"one": 0, "other": 0}
    kept: list[RawRecord] = []
    for step in range(12):
        batches = [(chance.randrange(1, 30), chance.random() < 0.7) for _ in range(chance.randrange(1, 4))]
        in_transactions(archived_group.brokers, name, *batches)
        before, end = end, end + sum(count + 1 for count, _ in batches)
        kept += archived_group.logged(name, before, end)
        group = chance.choice(["one", "other"])
        reached[group] = chance.randrange(reached[group], end + 1)
        archived_group.set_positions(name, {0: reached[group]}, group=group)
        archived_group.export(group=group, range_records=chance.randrange(1, 60) + 10).run()
        archived = max(e for _, e, _ in [(0, 0, 0), *archived_group.spans(name)])
        if chance.random() < 0.5:
            cut = chance.randrange(cut, max(archived, cut) + 1)
            archived_group.trim(name, cut)
        spans = archived_group.spans(name)
        assert [start for start, _, _ in spans] == [0, *[to for _, to, _ in spans]][: len(spans)], f"step {step}"
        start = chance.randrange(end)
        stop = chance.randrange(start, end + 1)
        wanted = [record for record in kept if start <= record.offset < stop]
        assert records(archived_group.chained.read(archived_group.range(name, start, stop))) == wanted, f"step {step}"
    assert records(archived_group.chained.read(archived_group.range(name, 0, end))) == kept
    assert archived_group.strays() == []
