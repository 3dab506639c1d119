"""The sources of the site: every page is in its navigation, every link leads on, and the code's reference is whole."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

import pytest

import seekpoint
from public_modules import PUBLIC_MODULES
from sources import place_of, targets, write_sources
from support.docs_pages import PAGES, name_of
from support.every_row import for_each


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("site") / "sources"
    write_sources(written)
    return written


def listed(folder: Path) -> list[str]:
    """Every page that a list of the sidebar names, by its path without the ending."""
    files = []
    for page in [*folder.rglob("*.md"), *folder.rglob("*.rst")]:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            files += [os.path.normpath(page.parent.relative_to(folder) / name) for name in names]
    return files


def test_every_page_is_in_the_sidebar_once(folder: Path) -> None:
    places = {str(PurePosixPath(place_of(page)).with_suffix("")) for page in PAGES} - {"index"}
    pages = listed(folder)
    assert places <= set(pages)
    assert len(pages) == len(set(pages))


@for_each(PAGES, name_of)
def test_every_link_leads_to_a_file_of_the_site(page: Path, folder: Path) -> None:
    place = folder / place_of(page)
    paths = [target.partition("#")[0] for target in targets(place.read_text(encoding="utf-8"))]
    assert not [path for path in paths if not (place.parent / path).is_file()]


def test_every_public_module_and_root_name_has_a_page(folder: Path) -> None:
    pages = {path.name.removesuffix(".rst") for path in (folder / "reference" / "python").glob("*.rst")}
    assert pages == {"index", *PUBLIC_MODULES, *seekpoint.__all__}
