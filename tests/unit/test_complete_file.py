"""A file that has its name only once it is complete and synced."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from seekpoint.errors import ConfigError
from seekpoint.storage import complete_file


def test_file_and_folder_are_synced_before_the_block_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda opened: synced.append(stat.S_ISDIR(os.fstat(opened).st_mode)))
    with complete_file(tmp_path / "a.jsonl", mode=0o600) as out:
        out.write("{}\n")
        assert not (tmp_path / "a.jsonl").exists()
    assert synced == [False, True]
    assert (tmp_path / "a.jsonl").read_text() == "{}\n"
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_file_that_an_error_ends_has_no_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the caller"), complete_file(tmp_path / "a.jsonl"):
        raise ValueError("of the caller")
    assert not (tmp_path / "a.jsonl").exists()
    with pytest.raises(ConfigError, match="cannot be written: No such file"), complete_file(tmp_path / "b" / "a.jsonl"):
        pass
