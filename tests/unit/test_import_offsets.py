"""What an import of offsets says of commits that are missing: the place, and the method's argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from seekpoint.admin import Admin, import_offsets
from seekpoint.errors import ConfigError, Fenced
from seekpoint.kafka.commits import Commit
from seekpoint.kafka.identity import Identity
from seekpoint.records import Partition

ORIGIN, PARTITION = import_offsets._Group("old"), Partition("orders", 3)


def test_no_topics_are_not_missing_commits(tmp_path: Path) -> None:
    """Before any server is asked."""
    admin = Admin("postgresql+psycopg://localhost:1/none", {"bootstrap.servers": "localhost:1"})
    consumers: list[dict[str, Any]] = [{"from_group": "old"}, {"from_checkpoint": str(tmp_path)}]
    for consumer in consumers:
        with pytest.raises(ConfigError, match="topics= is empty"):
            admin.plan_import("g", topics=[], **consumer)


def test_a_checkpoint_without_offsets_is_not_looked_for_in_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoOffsets:
        name, kept_in, hint = "the query", "there", import_offsets._Query.hint

        def read(self, *_: Any) -> dict[Partition, Commit]:
            return {}

    monkeypatch.setattr(import_offsets, "_origin", lambda *_: NoOffsets())
    monkeypatch.setattr(Identity, "cluster_id", lambda _: "cluster")
    admin = Admin("postgresql+psycopg://localhost:1/none", {"bootstrap.servers": "localhost:1"})
    with pytest.raises(ConfigError, match="the query has no commit there: check the location"):
        admin.plan_import("g", from_checkpoint="/checkpoint")


def test_refusals_name_the_arguments_of_the_method() -> None:
    with pytest.raises(Fenced, match=r"\(`--topic`, `topics=`\)"):
        import_offsets._require_partitions(ORIGIN, {PARTITION: Commit(5)}, {"orders": 3})
    absent = [PARTITION, Partition("orders", 4)]
    with pytest.raises(Fenced, match=r"for orders/3, orders/4: say where .* Admin.plan_import\(missing=...\)"):
        import_offsets._require_commits(ORIGIN, absent, {}, {}, None)
