"""The API reference: one page for each public module, whose text Sphinx takes from the docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from importlib import import_module

from public_modules import documented_names

FOLDER = "reference/python"


def api_pages() -> dict[str, str]:
    """The pages by their path in the site's sources: one for each public module, and for each root name."""
    modules = documented_names()
    root = {name: f"{_title(name)}\n{_object('seekpoint', name)}" for name in modules.pop("seekpoint")}
    pages = root | {name: _module_page(name, names) for name, names in modules.items()}
    introduction = "Every public class, function and method, with its signature."
    index = (
        f"{_title('API from docstrings')}\n{introduction}\n\n{_list('seekpoint', root)}\n{_list('Modules', modules)}"
    )
    return {f"{FOLDER}/{name}.rst": text for name, text in {**pages, "index": index}.items()}


def _module_page(module_name: str, names: dict[str, str | None]) -> str:
    parts = [_title(module_name), f".. automodule:: {module_name}\n   :no-members:\n"]
    for name, home in names.items():
        if home is None:
            parts.append(f"{_title(name, '-')}\n{_object(module_name, name)}")
        else:
            parts.append(f"``{name}`` is :py:obj:`{home}.{name}`.\n")
    return "\n".join(parts)


def _object(module_name: str, name: str) -> str:
    value = getattr(import_module(module_name), name)
    lines = [f".. {_directive(value)}:: {module_name}.{name}"]
    if fields := ", ".join(_fields(value)):
        lines.append(f"   :exclude-members: {fields}")
    return "".join(f"{line}\n" for line in lines)


def _fields(value: object) -> Iterator[str]:
    """The fields that a class's signature shows with their types: below it they would be there again."""
    if not inspect.isclass(value) or issubclass(value, Enum):
        return
    declared = {name for base in value.__mro__ for name in inspect.get_annotations(base)}
    with suppress(ValueError):  # a built-in exception's constructor has no signature
        yield from (name for name in inspect.signature(value).parameters if name in declared)


def _list(caption: str, names: Iterable[str]) -> str:
    return f".. toctree::\n   :caption: {caption}\n   :maxdepth: 1\n\n" + "".join(f"   {name}\n" for name in names)


def _directive(value: object) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isfunction(value) else "autodata"


def _title(text: str, line: str = "=") -> str:
    return f"{text}\n{line * len(text)}\n"
