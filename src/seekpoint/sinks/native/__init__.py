"""The optional package ``seekpoint-native``: JSON values to COPY text, compiled. Here it is decided whether it is used.

Without it, and for each value of which it is not certain, msgspec decodes and psycopg writes: only speed depends on it.
"""

from __future__ import annotations

import logging
import os
from typing import Any

logger = logging.getLogger("seekpoint.sinks")

VARIABLE = "SEEKPOINT_NATIVE"  # 0: not used; 1: required; unset: used where it is installed
VERSION = "0.1.0"  # of the package: what this code was tested with


def _load() -> tuple[Any, str]:
    """The class ``Plan``, None where it is not used; and why."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in {"", "0", "1"}:
        raise ImportError(f"{VARIABLE} must be 0 (not used) or 1 (required), got {wanted!r}")
    if wanted == "0":
        return None, f"off ({VARIABLE}=0)"
    try:
        import seekpoint_native as native  # noqa: PLC0415 -- optional
    except ImportError as error:
        if wanted:
            raise ImportError(f"{VARIABLE}=1, and seekpoint-native cannot be imported: {error}") from error
        return None, "not installed"
    if native.__version__ != VERSION:
        if wanted:
            raise ImportError(f"{VARIABLE}=1, and seekpoint-native is {native.__version__}, not {VERSION}")
        logger.warning("seekpoint-native %s is not used: this version needs %s", native.__version__, VERSION)
        return None, f"off (seekpoint-native is {native.__version__}, not {VERSION})"
    return native.Plan, f"seekpoint-native {VERSION}"


PLAN, STATE = _load()
"""The compiled ``Plan``, or None; and in words whether it is used, as ``seekpoint --version`` shows it."""
