"""The console, for web services: pages that show every group, and let permitted users act. Needs the extra ``web``."""

from seekpoint.web.access import Access, AccessOf, Right
from seekpoint.web.app import create_app

__all__ = ["Access", "AccessOf", "Right", "create_app"]
