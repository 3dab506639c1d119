"""``seekpoint dev --demo`` opens the console in a browser of the desktop, and in no other."""

from __future__ import annotations

import webbrowser

import pytest

from seekpoint.cli import dev

ADDRESS = "http://127.0.0.1:8484/"


class RecordingBrowser:
    """A browser that notes what it opens."""

    def __init__(self, opened: list[str]) -> None:
        self.opened = opened

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        self.opened.append(url)
        return True


class Desktop(RecordingBrowser, webbrowser.BackgroundBrowser):
    pass


class Terminal(RecordingBrowser, webbrowser.UnixBrowser):
    background = False


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return []


def test_a_browser_of_the_desktop_is_opened(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: Desktop(opened))
    assert dev._open_browser(ADDRESS)
    assert opened == [ADDRESS]


def test_without_a_display_none_is_tried(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: Desktop(opened))
    monkeypatch.delenv("DISPLAY")
    assert not dev._open_browser(ADDRESS)
    assert opened == []


def test_a_browser_in_the_terminal_is_not_opened(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> None:
    """It would wait until it is closed."""
    monkeypatch.setattr(webbrowser, "get", lambda: Terminal(opened))
    assert not dev._open_browser(ADDRESS)
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("false"))
    assert not dev._open_browser(ADDRESS)
    assert opened == []


def test_without_a_browser_none_is_opened(monkeypatch: pytest.MonkeyPatch, opened: list[str]) -> None:
    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    assert not dev._open_browser(ADDRESS)
