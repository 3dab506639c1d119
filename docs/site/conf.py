"""How Sphinx builds the site from the sources that ``sources.py`` writes."""

from __future__ import annotations

import builtins
import logging
from importlib.metadata import version as version_of

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.pycode import ModuleAnalyzer

project = "Seekpoint"
copyright = "The Seekpoint authors"  # noqa: A001 -- Sphinx reads this name
release = version = version_of("seekpoint")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 6  # every heading can be linked to by its slug, as on GitHub

autodoc_default_options = {"members": True, "undoc-members": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
# What a type alias of ours is an alias of, and its type variables.
nitpick_ignore_regex = [
    (r"py:class", r"((collections\.abc|starlette\.requests|sqlalchemy\.engine\.base)\.\w+|AsyncConnection)"),
    (r"py:obj", r"seekpoint\.(codecs\.(codec\.)?|pipeline\.sink\.)[KV]"),
]

smartquotes = False  # two hyphens begin an option

html_theme = "furo"
html_title = "Seekpoint"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

logging.getLogger("alembic").setLevel(logging.WARNING)  # it is imported for its docstrings, and logs its plugins


def setup(app: Sphinx) -> None:
    """Register how references to names of Python are resolved."""
    app.connect("doctree-read", _prepare_references)
    app.connect("missing-reference", _leave_types)
    _show_all_parameters()


def _show_all_parameters() -> None:
    """Show a pipeline's constructor as it is implemented: its overloads, for type checkers, join most parameters."""
    analyzer = ModuleAnalyzer.for_module("seekpoint.pipeline.pipeline")
    analyzer.analyze()
    del analyzer.overloads["Pipeline.__init__"]


def _prepare_references(_: Sphinx, doctree: nodes.document) -> None:
    """A docstring names our classes without their module; a signature's ``bytes`` is not an attribute of that name."""
    for reference in list(doctree.findall(pending_xref)):
        if reference.get("refdomain") == "py" and hasattr(builtins, reference["reftarget"]):
            reference.replace_self(nodes.Text(reference["reftarget"]))
        elif reference.get("refdomain") == "py" and not _is_annotation(reference):
            reference["refspecific"] = True


def _leave_types(
    _: Sphinx, _env: BuildEnvironment, reference: pending_xref, content: nodes.TextElement
) -> nodes.TextElement | None:
    """A type in a signature that has no page here stays text; any other reference that leads nowhere is an error."""
    return content if _is_annotation(reference) else None


def _is_annotation(reference: pending_xref) -> bool:
    """Whether Sphinx made it from a signature: what a text refers to carries ``refwarn``."""
    return reference.get("refdomain") == "py" and "refwarn" not in reference
