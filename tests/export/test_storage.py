"""Where the files are: names of places, and the few things that are done there, on a file system of pyarrow's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from seekpoint.errors import ConfigError
from seekpoint.export.storage import Storage, below, named


def test_one_place_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "archive")
    assert {named(root) for root in ("archive", Path("archive"), folder, f"{folder}/", f"file://{folder}")} == {folder}
    assert named("s3://bucket/archive/") == "s3://bucket/archive"
    for root in ("s3://key@bucket/archive", "s3://key:secret@bucket/archive"):
        with pytest.raises(ConfigError, match=r"would stand in the manifest.*AWS_ACCESS_KEY_ID") as refused:
            named(root)
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError, match="needs a folder, or a URL"):
        named("")
    with pytest.raises(ConfigError, match=r"nosuch://x is no place that pyarrow.fs knows"):
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
def test_a_file_is_named_as_other_tools_are_told_of_it(root: str, file: str) -> None:
    assert below(root, "t/1.parquet") == file


def test_a_bucket_is_used_like_a_folder() -> None:
    storage = Storage("mock:///bucket/archive")
    assert not storage.is_local
    assert list(storage.files()) == []
    with storage.create("t/0/1.parquet") as stream:
        stream.write(b"abc")
    storage.keep("t/0/1.parquet")
    assert (storage.size("t/0/1.parquet"), storage.size("t/0"), storage.size("t/2")) == (3, None, None)
    assert [file for file, _ in storage.files()] == ["t/0/1.parquet"]
    storage.remove("t/0/1.parquet")
    storage.remove("t/0/1.parquet")
    assert list(storage.files()) == []
