"""Archives and checkpoints in a bucket: a server of the S3 protocol, which pyarrow and other tools reach as usual."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from seekpoint.admin import Admin
from seekpoint.jobs.export import Archive, Export
from seekpoint.records import Partition
from support.archive import ArchivedGroup
from support.before_cutover import reloaded
from support.export_process import Exporter
from support.log_changes import trim
from support.reload_orders import OrdersGroup, doubled, of

pytestmark = pytest.mark.long("moto's server is imported for 5 s")
BUCKET = "warehouse"


@dataclass(frozen=True)
class S3:
    """A server with one bucket; ``client`` is boto3's."""

    endpoint: str
    client: Any

    def names(self) -> list[str]:
        """The names of all objects."""
        return sorted(entry["Key"] for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ()))

    def uploads(self) -> list[str]:
        """The names of objects whose upload was begun, and neither ended nor aborted."""
        return [upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An empty bucket, and the environment variables with which every tool finds it."""
    import boto3

    variables = {
        "AWS_ACCESS_KEY_ID": "ada",
        "AWS_SECRET_ACCESS_KEY": "a test's",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",  # deltalake's
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    bucket = S3(endpoint, client)
    yield bucket
    for key in bucket.names():
        client.delete_object(Bucket=BUCKET, Key=key)
    for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()):
        client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
    client.delete_bucket(Bucket=BUCKET)


@pytest.fixture
def group_on_s3(archived_group: ArchivedGroup, s3: S3) -> ArchivedGroup:
    return replace(archived_group, bucket=f"s3://{BUCKET}/kafka")


def test_files_in_a_bucket_are_read_by_pyarrow_and_pandas(group_on_s3: ArchivedGroup, s3: S3) -> None:
    import pandas as pd  # half a second, like the next
    import pyarrow.dataset as ds
    import pyarrow.fs

    name = group_on_s3.filled(60)
    group_on_s3.export(range_records=25).run()
    files = list(group_on_s3.archive.files(name))
    assert s3.names() == sorted(file.removeprefix(f"s3://{BUCKET}/") for file in files), "no folders, nothing else"
    values = [str(number).encode() for number in range(60)]
    frame = pd.concat(map(pd.read_parquet, files))
    assert list(frame["value"]) == values
    bucket, _ = pyarrow.fs.FileSystem.from_uri(f"s3://{BUCKET}")
    table = ds.dataset([file.removeprefix("s3://") for file in files], filesystem=bucket).to_table()
    assert table["value"].to_pylist() == values
    assert table["offset"].to_pylist() == list(range(60))
    assert group_on_s3.archived(name, 0, 60) == group_on_s3.logged(name, 0, 60)


def test_an_endpoint_in_the_url_needs_no_variable(
    group_on_s3: ArchivedGroup, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    options = f"?endpoint_override={s3.endpoint.removeprefix('http://')}&scheme=http"
    group = replace(group_on_s3, bucket=f"s3a://{BUCKET}/kafka{options}")
    name = group.filled(60)
    group.export().run()
    assert group.archived(name, 0, 60) == group.logged(name, 0, 60)
    assert len(s3.names()) == 1


def test_a_delta_table_in_a_bucket(group_on_s3: ArchivedGroup, s3: S3) -> None:
    import deltalake

    name = group_on_s3.filled(60)
    group_on_s3.export(range_records=25, format="delta").run()
    table = deltalake.DeltaTable(f"s3://{BUCKET}/kafka/{name}").to_pyarrow_table().sort_by("offset")
    assert table["value"].to_pylist() == [str(number).encode() for number in range(60)]
    assert group_on_s3.archived(name, 0, 60) == group_on_s3.logged(name, 0, 60)


def test_what_retention_deleted_is_read_from_the_bucket(orders_group: OrdersGroup, s3: S3) -> None:
    records = [of(number % 40, number, number) for number in range(120)]
    orders_group.produce(orders_group.topic, records, partition=0)
    orders_group.work(len(records))
    archive = Archive(f"s3://{BUCKET}/kafka", orders_group.engine, schema=orders_group.schema)
    kafka = {"bootstrap.servers": orders_group.brokers}
    Export(orders_group.engine, kafka, archive, orders_group.group, range_records=50).run()
    trim(AdminClient(kafka | {"log_level": 0}), orders_group.topic, 77)
    reloaded(orders_group.reload(archive=archive, range_records=40))
    assert orders_group.rows() == doubled(records)


def test_a_killed_export_leaves_no_torn_file(group_on_s3: ArchivedGroup, s3: S3) -> None:
    """S3 has no object of a file that a killed process was uploading, only parts, which no listing shows."""
    name = group_on_s3.filled([os.urandom(300_000) for _ in range(40)])  # 12 MB: pyarrow uploads parts of 10 MB
    Exporter(group_on_s3, "in a file").kill_where_it_waits()
    assert s3.names() == []
    assert len(s3.uploads()) == 1
    assert group_on_s3.archive.entries() == []
    Exporter(group_on_s3, "a file").kill_where_it_waits()
    assert len(s3.names()) == 1, "a complete file that no row of the manifest names"
    assert group_on_s3.archive.entries() == []
    group_on_s3.export().run()
    assert len(s3.names()) == 2
    assert group_on_s3.archived(name, 0, 40) == group_on_s3.logged(name, 0, 40)
    assert group_on_s3.archive.sweep() == [], "it is younger than a day"
    assert len(group_on_s3.archive.sweep(timedelta(0))) == 1
    assert len(group_on_s3.archive.files()) == 1
    assert group_on_s3.archived(name, 0, 40) == group_on_s3.logged(name, 0, 40)


def test_a_query_whose_checkpoint_is_in_a_bucket_is_taken_over(group_on_s3: ArchivedGroup, s3: S3) -> None:
    name = group_on_s3.topic()
    group_on_s3.produce(name, map(str, range(10)))
    for file, lines in {
        "offsets/0": ("v1", "{}", f'{{"{name}":{{"0":3}}}}'),
        "offsets/1": ("v1", "{}", f'{{"{name}":{{"0":6}}}}'),
        "offsets/2": ("v1", "{}", f'{{"{name}":{{"0":9}}}}'),
        "commits/0": ("v1", "{}"),
        "commits/1": ("v1", "{}"),
    }.items():
        s3.client.put_object(Bucket=BUCKET, Key=f"checkpoints/orders/{file}", Body="\n".join(lines).encode())
    admin = Admin(group_on_s3.engine, group_on_s3.kafka, schema=group_on_s3.schema)
    plan = admin.plan_import(group_on_s3.group, from_checkpoint=f"s3a://{BUCKET}/checkpoints/orders")
    admin.apply(plan, reason="a test", actor="ada")
    assert {row.partition: row.next_offset for row in group_on_s3.ledger.read()} == {Partition(name, 0): 6}


def test_a_bucket_that_does_not_exist_is_named(group_on_s3: ArchivedGroup) -> None:
    group = replace(group_on_s3, bucket="s3://nosuch/kafka")
    group.filled(60)
    with pytest.raises(OSError, match=r"in bucket 'nosuch': .*The specified bucket does not exist"):
        group.export().run()
    assert group.archive.entries() == []
