"""Carries out plans of all kinds except resets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy.exc import OperationalError

from seekpoint.admin.attribution import Attribution
from seekpoint.admin.forget import ForgetPlan, ForgetResult, apply_forget
from seekpoint.admin.import_offsets import ImportPlan, apply_import
from seekpoint.admin.losses import AcceptPlan, accept
from seekpoint.admin.mirror import MirrorPlan, apply_mirror
from seekpoint.admin.pauses import PausePlan, apply_pause
from seekpoint.admin.purges import PurgePlan, apply_purge
from seekpoint.errors import Fenced
from seekpoint.ledger import GroupLedger
from seekpoint.postgres.sqlstates import LOCK_NOT_AVAILABLE, sqlstate

Plan = PausePlan | AcceptPlan | ForgetPlan | PurgePlan | ImportPlan | MirrorPlan


def apply_plan(
    ledger: GroupLedger, plan: Plan, attribution: Attribution, brokers: Callable[[], Mapping[str, Any]], timeout: float
) -> ForgetResult | dict[str, int] | None:
    """Carry out a plan. Raises Fenced, with nothing done, if the group has changed since the plan, or stays locked.

    ``brokers`` returns the Kafka configuration, or raises; ``timeout`` is in seconds.
    """
    try:
        match plan:
            case PausePlan():
                apply_pause(ledger, plan, attribution)
            case AcceptPlan():
                accept(ledger, plan, attribution)
            case ImportPlan():
                apply_import(ledger, plan, attribution, kafka=brokers(), timeout=timeout)
            case MirrorPlan():
                apply_mirror(ledger, plan, attribution, kafka=brokers(), timeout=timeout)
            case ForgetPlan():
                return apply_forget(ledger, plan, attribution)
            case PurgePlan():
                return apply_purge(ledger, plan, attribution)
    except OperationalError as error:
        if sqlstate(error) != LOCK_NOT_AVAILABLE:
            raise
        raise Fenced(
            f"another session has locked group {plan.group!r} or one of its partitions for too long: nothing was done; "
            "try again"
        ) from error
    return None
