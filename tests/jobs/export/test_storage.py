"""Where the files are: names of places, and the few things that are done there, on a file system of pyarrow's own."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from seekpoint import storage
from seekpoint.errors import ConfigError
from seekpoint.jobs.export.files import write
from seekpoint.kafka.ranges import Piece, Range
from seekpoint.records import Partition, Record
from seekpoint.storage import Storage, below, named


def test_one_place_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "archive")
    assert {named(root) for root in ("archive", Path("archive"), folder, f"{folder}/", f"file://{folder}")} == {folder}
    assert named("s3://bucket/archive/") == "s3://bucket/archive"
    for root in (
        "s3://key@bucket/archive",
        "s3://key:secret@bucket/archive",
        "abfss://a.b/c?client_secret=secret",
        "abfss://c@a.dfs.core.windows.net/x?sv=2024&sig=secret",
        "s3://bucket/x?X-Amz-%53ignature=secret",
    ):
        with pytest.raises(ConfigError, match=r"would be stored and shown in plans.*AWS_ACCESS_KEY_ID") as refused:
            named(root)
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="name a folder, or a URL"):
        named("")
    with pytest.raises(ConfigError, match=r"pyarrow.fs cannot open nosuch://x: "):
        Storage("nosuch://x")


@pytest.mark.parametrize(
    ("root", "file"),
    [
        ("/archive", "/archive/t/1.parquet"),
        ("/what?", "/what?/t/1.parquet"),
        ("s3://b/a", "s3://b/a/t/1.parquet"),
        ("s3://b/a/?region=x", "s3://b/a/t/1.parquet?region=x"),
    ],
)
def test_a_file_has_the_name_that_other_tools_use(root: str, file: str) -> None:
    assert below(root, "t/1.parquet") == file


def test_the_disk_keeps_a_file_and_its_name_before_the_manifest_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Path] = []
    monkeypatch.setattr(storage, "_sync", kept.append)
    range_ = Range(Partition("t", 0), UUID(int=1), 0, 1)
    piece = Piece([Record("t", 0, 0, 0, None, b"1", (), None)])
    root = tmp_path / "new" / "archive"
    write(Storage(str(root)), "t/0/1.parquet", range_, [piece])
    file = root / "t" / "0" / "1.parquet"
    assert kept[:5] == [file, *file.parents[:4]]
    assert kept[4] == root.parent == tmp_path / "new", "the root may be new, and folders above it"
    assert tmp_path in kept


def test_a_bucket_is_used_like_a_folder() -> None:
    bucket = Storage("mock:///bucket/archive")
    assert not bucket.is_local
    assert list(bucket.files()) == []
    with bucket.create("t/0/1.parquet") as stream:
        stream.write(b"abc")
    bucket.keep("t/0/1.parquet")
    assert (bucket.size("t/0/1.parquet"), bucket.size("t/0"), bucket.size("t/2")) == (3, None, None)
    assert [file for file, _ in bucket.files()] == ["t/0/1.parquet"]
    bucket.remove("t/0/1.parquet")
    bucket.remove("t/0/1.parquet")
    assert list(bucket.files()) == []


@pytest.mark.parametrize(
    "spellings",
    [
        ["s3://b/a", "s3a://b/a/", "S3N://b/a", "s3://b/a?region=eu-central-1"],
        ["gs://b/a", "gcs://b/a"],
        ["dbfs:/mnt/a", "dbfs:///mnt/a/", "/dbfs/mnt/a"],
        ["/a/b", "/a/./b", "/a/c/../b", "/a//b", "file:///a/b", "file:/a/b"],
        [
            "abfss://c@store.dfs.core.windows.net/a/b",
            "abfs://c@store.dfs.core.windows.net/a/b/",
            "abfss://store.dfs.core.windows.net/c/a/b",
            "abfss://Store.blob.core.windows.net/c/a/b",
            "wasbs://c@store.blob.core.windows.net/a/b",
            "wasb://c@store.blob.core.windows.net/a/b/",
        ],
    ],
)
def test_one_place_has_one_name_in_the_manifest_however_it_is_spelled(spellings: list[str]) -> None:
    assert len({storage.place(named(spelling)) for spelling in spellings}) == 1


def test_what_is_another_place_has_another_name() -> None:
    others = ["s3://b/a", "s3://b/A", "s3://c/a", "s3://b/a?endpoint_override=here", "gs://b/a", "/b/a"]
    others += ["abfss://c@store.dfs.core.windows.net/a", "abfss://d@store.dfs.core.windows.net/a"]
    assert len({storage.place(named(name)) for name in others}) == len(others)


@pytest.mark.long
def test_roots_as_spark_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``dbfs:/`` is no folder beside the process, an Azure container no password, ``s3a://`` pyarrow's ``s3://``."""
    assert Storage("abfss://c@store.dfs.core.windows.net/a").path("f") == "c/a/f"
    assert Storage("abfs://c@store.dfs.core.windows.net/a").path("f") == "c/a/f"
    assert Storage(named("wasbs://c@store.blob.core.windows.net/a")).path("f") == "c/a/f"
    assert Storage("abfss://c@store.blob.core.windows.net/a").path("f") == "c/a/f"
    assert Storage("gcs://b/a").path("f") == "b/a/f"
    with pytest.raises(ConfigError, match=r"pyarrow.fs cannot open s3a://b-/a") as refused:
        Storage("s3a://b-/a")
    assert "Unrecognized filesystem type" not in str(refused.value)
    with pytest.raises(
        ConfigError, match=r"dbfs:/ is read through the folder .*, which does not exist on this machine"
    ):
        Storage(named("dbfs:/mnt/a"))
    monkeypatch.setattr(storage, "DBFS", str(tmp_path))
    assert Storage(named("dbfs:/mnt/a")).path("f") == f"{tmp_path}/mnt/a/f"
    with pytest.raises(ConfigError, match="s3:/b/a is not a URL, and as a path it would be a folder on this machine"):
        named("s3:/b/a")
    with pytest.raises(ConfigError, match="would be stored and shown in plans"):
        named("abfss://c:secret@store.dfs.core.windows.net/a")
    with pytest.raises(ConfigError, match="would be stored and shown in plans"):
        named("wasbs://c:secret@store.blob.core.windows.net/a")
