"""Executors that are processes of their own, as on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from seekpoint.dev.spark import start_cluster
from shop import Shop
from spark.orders import BEHIND_COMMIT, FOR_EVER, expected

JOB = Path(__file__).parent / "cluster.py"


def run(shop: Shop, name: str, master: str, config: Mapping[str, str] | None = None) -> None:
    """Reload on this master, in a process of its own."""
    order = {
        "pipeline": name,
        "master": master,
        "config": dict(config or {}),
        "brokers": shop.brokers,
        "schema": shop.schema,
    }
    done = subprocess.run(
        [sys.executable, str(JOB)],
        env={**os.environ, "ORDER": json.dumps(order)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"outcome": "CutOver"}


@pytest.mark.usefixtures("surroundings")
def test_executors_of_their_own_with_one_that_is_killed_behind_its_commit(
    shop: Shop, named: Callable[[str], str], tmp_path: Path
) -> None:
    run(shop, named(BEHIND_COMMIT), "local-cluster[2,1,1024]")
    assert (tmp_path / "marker").exists(), "nobody was killed"
    assert shop.rows() == expected()
    attempts = shop.execute("SELECT count(*) FROM {schema}.reload_staged")
    assert attempts == [(7,)], "six ranges, and one of them twice"


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.5",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}


@pytest.mark.usefixtures("surroundings")
def test_a_task_that_hangs_is_overtaken_by_its_copy_on_another_machine(
    shop: Shop, named: Callable[[str], str], tmp_path: Path
) -> None:
    """Speculation: two attempts at one range at the same time; the one that is left behind leaves nothing."""
    name = named(FOR_EVER)
    with start_cluster() as master:
        run(shop, name, master, SPECULATION)
    assert (tmp_path / "marker").exists(), "nothing hung"
    assert shop.rows() == expected()
