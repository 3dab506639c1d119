"""The console: pages that show where every group is, and let users act who may. Needs the extra ``web``."""

from seekpoint.web.access import Access, AccessOf, Right
from seekpoint.web.app import create_app

__all__ = ["Access", "AccessOf", "Right", "create_app"]
