"""``dead-letters purge``: closed dead letters go by their age; an open one never does (I4)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from seekpoint import Limits
from seekpoint.admin import Admin
from seekpoint.errors import ConfigError, Fenced
from seekpoint.records import State
from support.command import seekpoint
from support.dead_letter_group import DeadLetterGroup
from support.sink_tables import orders

AGES = {State.REPLAYED: 40, State.DISCARDED: 40, State.SUPERSEDED: 20, State.DEAD_LETTERED: 40, State.BLOCKED: 40}


@pytest.fixture
def aged_group(dead_letter_group: DeadLetterGroup) -> DeadLetterGroup:
    """A dead letter in each state, closed (or dead-lettered, where it is not closed) so many days ago."""
    dead_letter_group.bad = {b"b"}
    dead_letters = dead_letter_group.park(*orders(*[b"b"] * 6))
    with dead_letter_group.engine.begin() as tx:
        for dead_letter, (state, days) in zip(dead_letters, {**AGES, State.SKIPPED: 40}.items(), strict=True):
            closed = "now() - :age" if state in {State.REPLAYED, State.DISCARDED, State.SUPERSEDED} else "NULL"
            tx.execute(
                text(
                    f'UPDATE "{dead_letter_group.schema}".dead_letter SET state = :state, closed_at = {closed}, '
                    "dead_lettered_at = now() - :age WHERE id = :id"
                ),
                {"state": state.value, "age": timedelta(days=days), "id": dead_letter.id},
            )
    return dead_letter_group


def run(dead_letter_group: DeadLetterGroup, *words: str, exits: int = 0) -> Any:
    url = dead_letter_group.engine.url.render_as_string(hide_password=False)
    return seekpoint(
        "dead-letters", "purge", *words, "--database-url", url, "--schema", dead_letter_group.schema, exits=exits
    )


def test_closed_ones_are_purged_by_their_age(aged_group: DeadLetterGroup) -> None:
    """I4: what was applied later; that a record was discarded or skipped is known by its row alone."""
    words = ["g", "--older-than", "30d"]
    planned = run(aged_group, *words).stdout
    assert "deletes 1 dead letter closed before " in planned
    assert "1 discarded, 1 skipped stay: to delete them, name their states with --state" in planned
    assert len(aged_group.dead_letters()) == 6
    assert "--reason" in run(aged_group, *words, "--apply", exits=2).stderr
    done = json.loads(run(aged_group, *words, "--execute", "--reason", "tidy", "--json").stdout)
    assert (done["applied"], done["deleted"]) == (True, {"replayed": 1})
    assert "nothing to do" in run(aged_group, *words, "--apply", "--reason", "tidy").stdout
    chosen = [*words, "--state", "discarded", "--state", "skipped"]
    assert "counts as applied" in run(aged_group, *chosen).stdout
    assert "2 dead letters: 1 discarded, 1 skipped" in run(aged_group, *chosen, "--apply", "--reason", "tidy").stdout
    assert sorted(aged_group.states().values()) == ["blocked", "dead_lettered", "superseded"]
    assert (
        "1 superseded stay: to delete them, name their states"
        in run(aged_group, "g", "--older-than", "0s", "--apply", "--reason", "x").stdout
    )
    again = [*words[:2], "0s", "--state", "superseded"]
    assert "only if the position has passed it" in run(aged_group, *again).stdout
    run(aged_group, *again, "--apply", "--reason", "tidy")
    assert sorted(aged_group.states().values()) == ["blocked", "dead_lettered"]
    assert [action[0] for action in aged_group.actions()] == ["purge"] * 3


def test_one_that_is_opened_again_or_locked_meanwhile_stays(aged_group: DeadLetterGroup) -> None:
    """I4: the plan deletes less then, and says how many; what is locked is not waited for."""
    admin = Admin(aged_group.engine, schema=aged_group.schema)
    plan = admin.plan_purge("g", timedelta(days=30), [State.REPLAYED, State.DISCARDED, State.SKIPPED])
    assert plan.counts == {"discarded": 1, "replayed": 1, "skipped": 1}
    by_state = {dead_letter.state: dead_letter.id for dead_letter in aged_group.dead_letters()}
    change = text(f'UPDATE "{aged_group.schema}".dead_letter SET state = :state, closed_at = NULL WHERE id = :id')
    with aged_group.engine.begin() as tx:
        tx.execute(change, {"state": "dead_lettered", "id": by_state[State.REPLAYED]})
    with aged_group.engine.begin() as other:
        other.execute(change, {"state": "dead_lettered", "id": by_state[State.DISCARDED]})
        assert admin.apply(plan, reason="tidy") == {"skipped": 1}
    assert sorted(aged_group.states().values()) == [
        "blocked",
        "dead_lettered",
        "dead_lettered",
        "dead_lettered",
        "superseded",
    ]
    assert admin.apply(plan, reason="tidy") == {}


def test_nothing_is_purged_while_a_run_is_open(aged_group: DeadLetterGroup) -> None:
    """I4: a reload adds the records that were replayed since it began, and finds them by their dead letters."""
    admin = Admin(aged_group.engine, schema=aged_group.schema)
    plan = admin.plan_purge("g", timedelta(days=30))
    with aged_group.engine.begin() as tx:
        tx.execute(
            text(
                f'INSERT INTO "{aged_group.schema}".reload_run (id, groups, tables, strategy, pipelines, version_from, '
                "version_to, state, driver_epoch, driver, staging_schema, actor, reason) VALUES (gen_random_uuid(), "
                "'{g}', '{t}', 'merge', '{p}', '{1}', '{1}', 'staged', 1, 'd', 's', 'a', 'r')"
            )
        )
    for refused in (lambda: admin.apply(plan, reason="x"), lambda: admin.plan_purge("g", timedelta(days=30))):
        with pytest.raises(
            Fenced, match=r"\(merge, staged\) of group 'g' is open, .* purge dead letters after its end"
        ):
            refused()
    assert len(aged_group.dead_letters()) == 6
    with aged_group.engine.begin() as tx:
        tx.execute(text(f"""UPDATE "{aged_group.schema}".reload_run SET state = 'cut_over'"""))
    assert admin.apply(plan, reason="x") == {"replayed": 1}


def test_a_run_that_opens_is_waited_for(aged_group: DeadLetterGroup) -> None:
    """It has read which dead letters are open, and is not committed yet."""
    admin = Admin(aged_group.engine, schema=aged_group.schema, limits=Limits(transaction_age=0.2))
    plan = admin.plan_purge("g", timedelta(days=30))
    with aged_group.engine.begin() as opening:
        opening.execute(text(f"SELECT FROM \"{aged_group.schema}\".consumer_group WHERE name = 'g' FOR SHARE"))
        with pytest.raises(Fenced, match="another session has locked group 'g'"):
            admin.apply(plan, reason="x")
    assert len(aged_group.dead_letters()) == 6


@pytest.mark.parametrize(
    ("words", "message"),
    [(["g", "--older-than", "a month"], "takes a length of time"), (["h", "--older-than", "1d"], "has no group 'h'"),
     (["g", "--older-than", "1d", "--state", "blocked"], "only closed dead letters are purged"),
     (["g", "--older-than", "999999d"], "before the year 1"), (["g"], "--older-than")],
)  # fmt: skip
def test_what_is_refused(aged_group: DeadLetterGroup, words: list[str], message: str) -> None:
    assert message in run(aged_group, *words, exits=2).stderr


def test_an_age_is_not_negative(aged_group: DeadLetterGroup) -> None:
    with pytest.raises(ConfigError, match="must not be negative"):
        Admin(aged_group.engine, schema=aged_group.schema).plan_purge("g", timedelta(days=-1))
