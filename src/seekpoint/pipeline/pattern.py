"""Topics by pattern: a regular expression of their names, whose groups may name the tables of each topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from string import Formatter

from seekpoint.errors import ConfigError

_INTERNAL = "__"  # the prefix of Kafka's own topics, and of its tools' topics


class Pattern:
    """The topics whose whole names match a regular expression of Python's ``re``; for ``Pipeline(topics=)``.

    A worker finds topics that are created later, every ``topic.metadata.refresh.interval.ms`` of its Kafka
    configuration. Named groups may name tables: with ``Pattern(r"shop\\.(?P<name>.+)")`` the records of ``shop.orders``
    are written by ``Append("landing.{name}")`` to ``landing.orders``. Names that begin with two underscores,
    which are Kafka's own, never match.

    Raises ConfigError for an invalid expression, or one that can match only such names.
    """

    def __init__(self, expression: str) -> None:
        example = r"Pattern(r'shop\.(?P<name>.+)')"
        text: object = expression
        if not isinstance(text, str) or not text:
            raise ConfigError(f"Pattern({expression!r}): give a regular expression as text, e.g. {example}")
        self.expression = expression
        try:
            self._regex = re.compile(expression)
        except (re.error, OverflowError, RecursionError) as error:
            named = "; a named group is (?P<name>...)" if "(?<" in expression else ""
            raise ConfigError(f"{self!r} is not a regular expression of Python's re: {error}{named}") from None
        if expression.lstrip("^").startswith(_INTERNAL):
            raise ConfigError(f"{self!r}: names that begin with '__' are Kafka's own: declare such a topic by its name")

    def __repr__(self) -> str:
        return f"Pattern({self.expression!r})"

    def matching(self, names: Collection[str]) -> list[str]:
        """The names that match, sorted."""
        return sorted(name for name in names if not name.startswith(_INTERNAL) and self._regex.fullmatch(name))

    def table_of(self, owner: str, path: Sequence[str]) -> Callable[[str], tuple[str, ...]] | None:
        """The function from a topic to its table, if the path names groups in braces; otherwise None.

        That function raises ConfigError for a topic in whose name a group is empty, or has a dot. Messages begin with
        ``owner``. Raises ConfigError for a group that the pattern does not have.
        """
        groups = self._groups(owner, path)
        if not groups:
            return None

        def table(topic: str) -> tuple[str, ...]:
            match = self._regex.fullmatch(topic)
            values = {} if match is None else match.groupdict()
            for group in groups:
                if not values.get(group):
                    raise ConfigError(f"{owner}: the pattern's group {group!r} matches nothing in topic {topic!r}")
                if "." in values[group]:
                    raise ConfigError(
                        f"{owner}: {group}={values[group]!r} of topic {topic!r} has a dot, which would separate a "
                        "schema from a table: let the group match no dots, or name the table by a function of the topic"
                    )
            return tuple(part.format(**values) for part in path)

        return table

    def _groups(self, owner: str, path: Sequence[str]) -> list[str]:
        """The groups that the path names."""
        try:
            fields = [field for part in path for field in Formatter().parse(part) if field[1] is not None]
        except ValueError as error:
            raise ConfigError(f"{owner}: {error}: write {{name}} for a group of the pattern") from None
        group_names = ", ".join(f"{{{name}}}" for name in self._regex.groupindex) or "none: write (?P<name>...)"
        for _, name, spec, conversion in fields:
            if name in self._regex.groupindex and (spec or conversion):
                raise ConfigError(f"{owner}: a group has no format and no conversion: write {{{name}}}")
            if name not in self._regex.groupindex:
                raise ConfigError(f"{owner}: {{{name}}} is not a named group of {self!r}; it has {group_names}")
        return [str(name) for _, name, _, _ in fields]
