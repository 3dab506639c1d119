"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
from seekpoint.schema import step

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    with step(to=revision, since=down_revision) as schema:
        ${upgrades.replace("\n", "\n    ") if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    with step(to=down_revision, since=revision) as schema:
        ${downgrades.replace("\n", "\n    ") if downgrades else "raise NotImplementedError"}
