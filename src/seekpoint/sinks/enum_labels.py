"""Which label of a Postgres enum each member of a Python enum is. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum


def labels_of(enum: type[Enum], labels: Sequence[str]) -> Mapping[Enum, str]:
    """Each member's label: its value if all values are labels, else its name if all names are.

    Raises ValueError if not all values and not all names are labels, or if both are and they differ.
    """
    members = list(enum)
    values = all(member.value in labels for member in members)
    names = all(member.name in labels for member in members)
    shown = ", ".join(labels)
    if values and names and any(member.value != member.name for member in members):
        raise ValueError(
            f"all values and all names of {enum.__name__} are labels ({shown}), but differ from each other: return the "
            "label from row=, as a str"
        )
    if values:
        return {member: member.value for member in members}
    if names:
        return {member: member.name for member in members}
    raise ValueError(
        f"neither all values nor all names of {enum.__name__} are labels of the column's type ({shown}): add the "
        "missing ones (ALTER TYPE … ADD VALUE), or correct the enum"
    )
