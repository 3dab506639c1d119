"""``--spark``: which masters there are is known before Java starts."""

from __future__ import annotations

import re

import pytest

from seekpoint.cli.spark_session import require_master
from seekpoint.errors import ConfigError
from support.failures import for_each


@for_each(
    [
        *["local", "local[2]", "local[*]", "local[4,2]", "local[*, 3]", "local-cluster[2,1,1024]"],
        *["spark://host:7077", "spark://one:7077,two:7077", "yarn", "k8s://https://host:6443"],
    ],
)
def test_masters_that_spark_takes(master: str) -> None:
    require_master(master)


@for_each(["", "lokal[2]", "local[]", "local[0]", "local[two]", "local[2", "spark://", "host:7077", "k8s://"])
def test_masters_that_it_does_not(master: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"{master!r} is not a Spark master: use local, local[4], local[*]")
    ):
        require_master(master)
