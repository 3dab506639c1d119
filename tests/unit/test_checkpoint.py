"""What is read of a Spark query's checkpoint. Spark writes one in ``tests/jobs/spark/test_checkpoint.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from seekpoint.admin.checkpoint import read_checkpoint
from seekpoint.errors import ConfigError
from seekpoint.records import Partition

ORDERS = '{"orders":{"0":23,"1":7}}'


def write(folder: Path, batch: int, *sources: str, version: str = "v1", is_committed: bool = True) -> Path:
    for name, lines in (("offsets", [version, "{}", *sources]), ("commits", ["v1", "{}"])):
        (folder / name).mkdir(exist_ok=True)
        if name == "offsets" or is_committed:
            (folder / name / str(batch)).write_text("\n".join(lines))
            (folder / name / f".{batch}.crc").write_bytes(b"crc")
    return folder


def test_the_last_committed_batch_counts_and_not_the_last_name(tmp_path: Path) -> None:
    write(tmp_path, 9, '{"orders":{"0":20,"1":6}}')
    write(tmp_path, 10, ORDERS)
    checkpoint = read_checkpoint(str(tmp_path))
    assert (checkpoint.batch, checkpoint.others) == (10, 0)
    assert checkpoint.offsets == {Partition("orders", 0): 23, Partition("orders", 1): 7}
    assert checkpoint.notes() == (
        "the offsets are the end of batch 10, the last one committed; stop the query first",
        "a checkpoint has no topic ids: if orders was created again since, the offsets are wrong",
    )


def test_a_batch_that_was_begun_is_named_with_its_ranges(tmp_path: Path) -> None:
    write(tmp_path, 3, ORDERS)
    write(tmp_path, 4, '{"orders":{"0":30,"1":7,"2":5}}', is_committed=False)
    checkpoint = read_checkpoint(str(tmp_path))
    assert checkpoint.batch == 3
    assert "has begun batch 4 but has not committed it" in checkpoint.notes()[1]
    assert "applies orders/0 [23, 30), orders/2 [0, 5) again" in checkpoint.notes()[1]


def test_the_last_of_several_batches_that_were_begun_counts(tmp_path: Path) -> None:
    """With asynchronous progress tracking, Spark commits not every batch."""
    write(tmp_path, 3, ORDERS)
    write(tmp_path, 5, '{"orders":{"0":30,"1":7}}', is_committed=False)
    write(tmp_path, 6, '{"orders":{"0":31,"1":7},"payments":{"0":4}}', is_committed=False)
    of_orders, of_payments = read_checkpoint(str(tmp_path)).notes()[1:3]
    assert (
        "has begun batches up to 6 but has not committed them: the group applies orders/0 [23, 31) again" in of_orders
    )
    assert (
        "has begun payments in batches up to 6 but has not committed them: no offset of it is imported" in of_payments
    )


def test_files_that_are_not_complete_are_refused(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(ConfigError) as error:
            read_checkpoint(str(tmp_path))
        return str(error.value)

    payments = '{"payments":{"0":1}}'
    write(tmp_path, 1, ORDERS, payments)
    write(tmp_path, 2, ORDERS, payments[:-2])
    assert "/offsets/2, source 1, is not JSON: the file is incomplete" in refused()
    write(tmp_path, 2, ORDERS)
    assert "/offsets/2 has 1 sources, but offsets/1 has 2: it is incomplete" in refused()
    write(tmp_path, 2, ORDERS, payments)
    for text, message in (
        (b"", "has format ''"),
        (b"v1", "/offsets/3 has 0 sources, but offsets/2 has 2"),
        (b"v1\n\xff{}", "/offsets/3 is not UTF-8"),
        (f"v1\n{{}}\n{ORDERS}\n{{".encode(), "/offsets/3, source 1, is not JSON"),
        (f'v1\n{{}}\n{payments}\n{{"orders":{{"0":{"9" * 5000}}}}}'.encode(), "/offsets/3, source 1, is not JSON"),
    ):
        (tmp_path / "offsets" / "3").write_bytes(text)
        assert message in refused(), "also of a batch that is not committed"
    (tmp_path / "offsets" / "3").unlink()
    (tmp_path / "commits" / "007").write_text("v1")
    assert read_checkpoint(str(tmp_path)).batch == 2, "a name that Spark does not write"


def test_several_sources_are_taken_together_and_others_are_said(tmp_path: Path) -> None:
    write(tmp_path, 0, "-", ORDERS, '{"payments":{"0":1}}', '{"logOffset":4}', "17", version="v1")
    checkpoint = read_checkpoint(str(tmp_path))
    assert checkpoint.offsets == {Partition("orders", 0): 23, Partition("orders", 1): 7, Partition("payments", 0): 1}
    assert "also reads 2 sources that are not Kafka" in checkpoint.notes()[1]


def test_names_of_sources_in_the_second_format(tmp_path: Path) -> None:
    write(tmp_path, 0, f"orders_source:{ORDERS}", "later:-", version="v2")
    assert read_checkpoint(str(tmp_path)).offsets[Partition("orders", 0)] == 23


def test_what_is_no_checkpoint_on_kafka_is_refused(tmp_path: Path) -> None:
    def refused() -> str:
        with pytest.raises(ConfigError) as error:
            read_checkpoint(str(tmp_path))
        return str(error.value)

    assert "has no committed batch (commits/): name the checkpointLocation of a query" in refused()
    write(tmp_path, 0, '{"logOffset":4}')
    assert "/offsets/0 has no offsets of Kafka's source, which look like" in refused()
    write(tmp_path, 1, ORDERS, '{"orders":{"1":9}}')
    assert "two sources of the query read orders/1, to 7 and 9 (source 1)" in refused()
    write(tmp_path, 2, ORDERS, version="v9")
    assert "/offsets/2 has format 'v9', not v1 or v2" in refused()
    (tmp_path / "offsets" / "2").unlink()
    assert "has commits/2 and no offsets/2: it is incomplete" in refused()
