"""The actions of operators, for their programs: :class:`Admin`, and the plans and values that it returns.

Status, pauses and resets of groups; dead letters to list, replay, discard and export.
"""

from seekpoint.admin.admin import Admin
from seekpoint.admin.explanation import Explanation, TopicGuarantee
from seekpoint.admin.findings import Diagnosis, Finding, Level
from seekpoint.admin.forget import ForgetPlan, ForgetResult, ForgottenGroup
from seekpoint.admin.history import Action, ActionFilter
from seekpoint.admin.import_offsets import Imported, ImportPlan
from seekpoint.admin.losses import Acceptance, AcceptPlan, LostRange
from seekpoint.admin.mirror import Mirrored, MirrorPlan
from seekpoint.admin.pauses import PausePlan
from seekpoint.admin.purges import PurgePlan
from seekpoint.admin.record_in_log import RecordInFront
from seekpoint.admin.reloads import ReloadStatus, TableDifferences
from seekpoint.admin.replace import Replaced, ReplaceResult
from seekpoint.admin.replace_plan import ReplacePlan
from seekpoint.admin.replay_requests import ReplayPlan, ReplayRequest
from seekpoint.admin.reset_plan import Reset, ResetDone, ResetPlan, ResetResult
from seekpoint.admin.reset_to import ResetTo
from seekpoint.admin.samples import Sample
from seekpoint.admin.status import BrokersAway, GroupStatus, PartitionStatus, Pause, WorkerStatus
from seekpoint.admin.summaries import GroupSummary
from seekpoint.ledger.dead_letters import DeadLetter, DeadLetterCause, Where
from seekpoint.ledger.roles import Role
from seekpoint.records import Cause, Failure, State
from seekpoint.runs.manage_runs import Runs
from seekpoint.runs.run import Driver, Run, StagedPosition
from seekpoint.worker.replay.group_dead_letters import Chosen, Discarded, Edited, GroupDeadLetters
from seekpoint.worker.replay.plan import Planned
from seekpoint.worker.replay.replay import ReplayableDeadLetters, Summary
from seekpoint.worker.replay.replay_one import Replayed

__all__ = [
    "AcceptPlan",
    "Acceptance",
    "Action",
    "ActionFilter",
    "Admin",
    "BrokersAway",
    "Cause",
    "Chosen",
    "DeadLetter",
    "DeadLetterCause",
    "Diagnosis",
    "Discarded",
    "Driver",
    "Edited",
    "Explanation",
    "Failure",
    "Finding",
    "ForgetPlan",
    "ForgetResult",
    "ForgottenGroup",
    "GroupDeadLetters",
    "GroupStatus",
    "GroupSummary",
    "ImportPlan",
    "Imported",
    "Level",
    "LostRange",
    "MirrorPlan",
    "Mirrored",
    "PartitionStatus",
    "Pause",
    "PausePlan",
    "Planned",
    "PurgePlan",
    "RecordInFront",
    "ReloadStatus",
    "ReplacePlan",
    "ReplaceResult",
    "Replaced",
    "ReplayPlan",
    "ReplayRequest",
    "ReplayableDeadLetters",
    "Replayed",
    "Reset",
    "ResetDone",
    "ResetPlan",
    "ResetResult",
    "ResetTo",
    "Role",
    "Run",
    "Runs",
    "Sample",
    "StagedPosition",
    "State",
    "Summary",
    "TableDifferences",
    "TopicGuarantee",
    "Where",
    "WorkerStatus",
]
