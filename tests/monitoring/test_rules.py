"""Each alert fires on the fault that it is for, no other one does, and all are silent for a healthy hour."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seekpoint.metrics import CATALOGUE, Kind
from support.docs_pages import ROOT
from support.operators_account import OperatorsAccount

RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "seekpoint.json"
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text(encoding="utf-8"))

AT = 'group="shop",topic="orders",partition="0"'
HEALTHY = {  # a value each minute, for two hours and a half
    f"seekpoint_lag_records{{{AT}}}": "0 12 40 " + " ".join(["3 0 25"] * 50),
    f"seekpoint_last_commit_timestamp_seconds{{{AT}}}": "0+60x150",
    f"seekpoint_next_offset{{{AT}}}": "0+1000x150",
    f"seekpoint_retention_headroom_seconds{{{AT}}}": "90000x150",
    f"seekpoint_sample_age_seconds{{{AT}}}": " ".join(["5 65 20"] * 51),
    f"seekpoint_partition_owned{{{AT}}}": "1 1 0 1 " + "1x147",  # a rebalance
    f"seekpoint_dead_letters_open{{{AT}}}": "3x150",
    'seekpoint_transactions_total{group="shop",outcome="unknown"}': "0 0 1 1 " + "1x147",
    'seekpoint_stale{group="shop"}': "0 1 1 " + "0x147",
    'seekpoint_live{group="shop"}': "1x150",
    'seekpoint_paused{group="shop"}': "0 0 1 1 1 " + "0x145",
    'seekpoint_reload_driver_silent_seconds{run="r",state="staging"}': "5 20 300 5 " + "10x147",
    "seekpoint_ledger_up": "1 0 1 " + "1x148",
}
FAULTS: dict[str, Mapping[str, str | None]] = {
    "SeekpointPartitionStopped": {f'seekpoint_partition_stopped{{{AT},cause="PoisonStop"}}': "_x20 1x130"},
    "SeekpointRetentionNear": {
        f"seekpoint_retention_headroom_seconds{{{AT}}}": "20000x150",
        f"seekpoint_lag_records{{{AT}}}": "100x150",
    },
    "SeekpointNoProgress": {
        f"seekpoint_last_commit_timestamp_seconds{{{AT}}}": "60x150",
        f"seekpoint_lag_records{{{AT}}}": "100x150",
    },
    "SeekpointStale": {'seekpoint_stale{group="shop"}': "1x150"},
    "SeekpointNotLive": {'seekpoint_live{group="shop",instance="b"}': "0x150"},
    "SeekpointNotOwned": {f"seekpoint_partition_owned{{{AT}}}": "0x150"},
    "SeekpointSampleOld": {f"seekpoint_sample_age_seconds{{{AT}}}": "0+60x150"},
    "SeekpointLagUnknown": {
        f"seekpoint_sample_age_seconds{{{AT}}}": "0+60x150",
        f"seekpoint_lag_records{{{AT}}}": None,
        f"seekpoint_retention_headroom_seconds{{{AT}}}": None,
    },
    "SeekpointDeadLettersGrow": {f"seekpoint_dead_letters_open{{{AT}}}": "3x80 4x70"},
    "SeekpointCommitsUnknown": {'seekpoint_transactions_total{group="shop",outcome="unknown"}': "0+1x150"},
    "SeekpointPaused": {'seekpoint_paused{group="shop"}': "1x150"},
    "SeekpointReloadDriverSilent": {'seekpoint_reload_driver_silent_seconds{run="r",state="staging"}': "0+60x150"},
    "SeekpointExporterBlind": {"seekpoint_ledger_up": "1x10 0x140"},
}
QUIET: dict[str, Mapping[str, str | None]] = {
    "a paused group whose records wait": {
        'seekpoint_paused{group="shop"}': "1x50 0x100",
        f"seekpoint_last_commit_timestamp_seconds{{{AT}}}": "60x50 3000+60x100",
        f"seekpoint_lag_records{{{AT}}}": "100x50 0x100",
        f"seekpoint_partition_owned{{{AT}}}": "0x50 1x100",
        f"seekpoint_sample_age_seconds{{{AT}}}": "0+60x50 5x100",
        'seekpoint_stale{group="shop"}': "1x50 0x100",
    },
    "a paused group whose lag is not known": {
        'seekpoint_paused{group="shop"}': "1x50 0x100",
        f"seekpoint_last_commit_timestamp_seconds{{{AT}}}": "60x50 3000+60x100",
        f"seekpoint_lag_records{{{AT}}}": "3x3 stale _x46 0x100",
        f"seekpoint_retention_headroom_seconds{{{AT}}}": "90000x3 stale _x46 90000x100",
        f"seekpoint_partition_owned{{{AT}}}": "0x50 1x100",
        f"seekpoint_sample_age_seconds{{{AT}}}": "0+60x50 5x100",
    },
    "a quiet topic": {
        f"seekpoint_last_commit_timestamp_seconds{{{AT}}}": "60x150",
        f"seekpoint_lag_records{{{AT}}}": "0x150",
    },
    "a partition that waits for a retry": {
        f"seekpoint_last_commit_timestamp_seconds{{{AT}}}": "60x150",
        f"seekpoint_lag_records{{{AT}}}": "100x150",
        f'seekpoint_partition_waiting{{{AT},cause="retry"}}': "1x150",
    },
    "little retention, and no lag": {
        f"seekpoint_retention_headroom_seconds{{{AT}}}": "3600x150",
        f"seekpoint_lag_records{{{AT}}}": "0x150",
    },
    "dead letters that were decided": {f"seekpoint_dead_letters_open{{{AT}}}": "30x80 4x70"},
}


# All workers were killed half an hour ago; retention deletes on, and reaches the position in the second hour.
DEAD = {
    f"seekpoint_last_commit_timestamp_seconds{{{AT}}}": "0+60x30 1800x120",
    f"seekpoint_next_offset{{{AT}}}": "0+1000x30 30000x120",
    f"seekpoint_sample_age_seconds{{{AT}}}": "5x30 0+60x120",
    f"seekpoint_partition_owned{{{AT}}}": "1x31 0x120",
    'seekpoint_live{group="shop"}': "1x30 stale",
    'seekpoint_stale{group="shop"}': "0x30 stale",
}
ASKED = {  # by an exporter
    f"seekpoint_lag_records{{{AT}}}": "10x30 0+1000x120",
    f"seekpoint_retention_headroom_seconds{{{AT}}}": "24000x30 24000-60x120",
}
BLIND = {
    f"seekpoint_lag_records{{{AT}}}": "10x32 stale",
    f"seekpoint_retention_headroom_seconds{{{AT}}}": "24000x32 stale",
}


def check(promtool: Path, tmp_path: Path, changes: Mapping[str, str | None], fires: Sequence[str]) -> None:
    """Evaluate the rules each minute of two hours: exactly these alerts have fired by some minute."""
    series = {name: values for name, values in {**HEALTHY, **changes}.items() if values is not None}
    asked = 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[2h]))'
    test: dict[str, Any] = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": asked,
                "eval_time": "2h",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fires],
            }
        ],
    }
    file = tmp_path / "test.yml"  # JSON is YAML
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(json.dumps(content), encoding="utf-8")
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_reads_the_rules(promtool: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", RULES], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_all_are_silent_for_a_healthy_hour(promtool: Path, tmp_path: Path, operators_account: OperatorsAccount) -> None:
    check(promtool, tmp_path, {}, [])
    operators_account.alerts_silent += len(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_on_its_fault_and_no_other_does(
    promtool: Path, tmp_path: Path, alert: str, operators_account: OperatorsAccount
) -> None:
    check(promtool, tmp_path, FAULTS[alert], [alert])
    operators_account.alerts_fired += 1


@pytest.mark.parametrize("state", QUIET)
def test_all_are_silent_on_what_is_no_fault(promtool: Path, tmp_path: Path, state: str) -> None:
    check(promtool, tmp_path, QUIET[state], [])


def test_dead_workers_are_seen_before_retention_takes_what_they_have_not_applied(
    promtool: Path, tmp_path: Path
) -> None:
    seen = ["SeekpointNoProgress", "SeekpointNotOwned", "SeekpointRetentionNear", "SeekpointSampleOld"]
    check(promtool, tmp_path, {**DEAD, **ASKED}, seen)


def test_dead_workers_whose_lag_is_not_known_are_critical(promtool: Path, tmp_path: Path) -> None:
    check(promtool, tmp_path, {**DEAD, **BLIND}, ["SeekpointLagUnknown", "SeekpointNotOwned"])


def test_an_exporter_that_is_gone_is_seen(promtool: Path, tmp_path: Path) -> None:
    check(promtool, tmp_path, {"seekpoint_ledger_up": None}, ["SeekpointExporterBlind"])


def exposed() -> set[str]:
    """The names that Prometheus has."""
    suffixes = {Kind.COUNTER: ["_total"], Kind.GAUGE: [""], Kind.HISTOGRAM: ["_bucket", "_sum", "_count"]}
    return {f"seekpoint_{metric.name}{suffix}" for metric in CATALOGUE for suffix in suffixes[metric.kind]}


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda file: str(file.name))
def test_every_name_is_in_the_catalogue(file: Path) -> None:
    names = set(re.findall(r"\bseekpoint_\w+", file.read_text(encoding="utf-8")))
    assert names
    assert names <= exposed()


def test_every_alert_has_a_fault() -> None:
    assert sorted(FAULTS) == sorted(ALERTS)
