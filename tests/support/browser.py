"""Sends the console a browser's requests, without a browser."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

from httpx2 import Response
from starlette.testclient import TestClient

LOCAL = "http://localhost:8484"


class Browser(TestClient):
    """A client on this machine that sends a browser's headers with forms."""

    def plan(self, action: str, **parameters: Any) -> dict[str, str]:
        """Ask for a plan; returns the fields of its form."""
        page = self.get(f"/plan?{urlencode({'action': action, **parameters})}")
        assert page.status_code == 200, page.text
        return self.form_of(page)

    @staticmethod
    def form_of(page: Response) -> dict[str, str]:
        """The hidden fields of the form of a page."""
        fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page.text)
        return {name: unescape(value) for name, value in fields}

    def apply(self, form: dict[str, str], reason: str = "because", **headers: str) -> Response:
        """Send a form."""
        sent = {"origin": LOCAL, "sec-fetch-site": "same-origin", **headers}
        return self.post("/apply", data={**form, "reason": reason}, headers=sent, follow_redirects=False)
