"""Topics by pattern: which names match, which tables the match names, and what is refused, in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import Consumer
from sqlalchemy import Engine

from seekpoint import Accumulate, Append, Assignment, Json, Ledger, Pattern, Pipeline, StartAt, Upsert, Worker
from seekpoint.admin import Admin
from seekpoint.codecs import Debezium
from seekpoint.errors import ConfigError
from seekpoint.jobs.batch import BatchJob
from seekpoint.jobs.reload import Reload
from seekpoint.pipeline.frames import Frame, SparkPipeline
from seekpoint.pipeline.pipeline import Pipeline as AnyPipeline
from seekpoint.sinks.arrow import AppendArrow
from seekpoint.testing import check_exactly_once, process
from support.every_row import for_each

SHOP = Pattern(r"shop\.(?P<name>.+)")
URL = "postgresql+psycopg://unknown@localhost/none"
KAFKA = {"bootstrap.servers": "localhost:9092"}


def pipeline(*sinks: Any, topics: Any = SHOP, **options: Any) -> Pipeline:
    return Pipeline("g", topics=topics, value=Json(dict), sinks=sinks or [Append("{name}", columns=["n"])], **options)


def with_topics(declared: Pipeline, *topics: str) -> Pipeline:
    copied = declared.for_worker()
    for topic in topics:
        copied.add_topic(topic)
    return copied


def test_whole_names_match_and_kafkas_own_never_do() -> None:
    names = ["shop.a", "shop.", "my.shop.a", "shop.b", "__consumer_offsets"]
    assert SHOP.matching(names) == ["shop.a", "shop.b"]
    assert Pattern("^shop[.].$").matching(names) == ["shop.a", "shop.b"]
    assert Pattern("shop[.].").matching([*names, "shop.ab"]) == ["shop.a", "shop.b"]
    assert Pattern("(?i).*").matching(names) == ["my.shop.a", "shop.", "shop.a", "shop.b"]
    assert repr(SHOP) == r"Pattern('shop\\.(?P<name>.+)')"


def test_each_topic_has_its_tables_and_workers_do_not_share_topics() -> None:
    declared = pipeline(
        Upsert("s.{name}", key=["id"], columns=["id"]),
        Append("log", columns=["id"]),
        Append(lambda topic: ("s", topic.upper()), columns=["id"]),
    )
    first, other = with_topics(declared, "shop.b", "shop.a"), with_topics(declared, "shop.c")
    assert first.tables_by_topic() == {
        "shop.a": ("log", "s.SHOP.A", "s.a"),
        "shop.b": ("log", "s.SHOP.B", "s.b"),
    }
    assert [repr(sink) for sink in first.sinks] == [
        "Upsert('s.b')", "Upsert('s.a')", "Append('log')", "Append('s.SHOP.B')", "Append('s.SHOP.A')",
    ]  # fmt: skip
    assert other.topics == ("shop.c",)
    assert declared.topics == ()
    assert repr(first) == r"Pipeline('g', topics=Pattern('shop\\.(?P<name>.+)'))"


def test_every_kind_of_sink_has_a_table_for_each_topic() -> None:
    sinks = [
        AppendArrow("{name}"),
        Accumulate("{name}", key=["id"], add=["n"]),
        Upsert(str.upper, key=["id"]),
        Append({"shop.a": "x"}.__getitem__, columns=["n"]),
    ]
    bound = with_topics(pipeline(*sinks), "shop.a")
    assert [sink.tables for sink in bound.sinks] == [("a",), ("a",), ("SHOP.A",), ("x",)]


def test_braces_are_literal_where_topics_are_named() -> None:
    named = pipeline(Append("{name}", columns=["n"]), topics="shop.a")
    assert named.tables == ("{name}",)
    assert named.for_worker() is named


@for_each(
    [
        (Append("{name}", columns=["n"]), "shop.a.b", "name='a.b' of topic 'shop.a.b' has a dot, which would separate"),
        (
            Append("s.{name}", columns=["n"]),
            "shop." + "é" * 40,
            "of 80 bytes, and Postgres cuts names to 63: name it by",
        ),
        (
            Append(dict[str, str]().__getitem__, columns=["n"]),
            "shop.a",
            "Append(__getitem__) raised KeyError for topic 'shop.a'",
        ),
        (Append(lambda _: "a.b.c", columns=["n"]), "shop.a", "topic 'shop.a': name it 'table' or 'schema.table'"),
        (Append(cast("Any", lambda _: None), columns=["n"]), "shop.a", "or a mapped class, got None"),
    ],
    lambda row: row[2],
)
def test_a_topic_without_a_table_says_why(row: tuple[Any, str, str]) -> None:
    sink, topic, message = row
    bound = with_topics(pipeline(sink, Append("all", columns=["n"])), topic, "shop.a.b")
    assert message in bound.without_table[topic]
    assert bound.sinks_of(topic) == [sink for sink in bound.sinks if sink.tables == ("all",)]


def test_some_topics_are_a_pipeline_of_named_topics() -> None:
    declared = pipeline(Upsert("s.{name}", key=["id"], columns=["id"]), Append("log", columns=["id"]))
    named = declared.with_topics("shop.b", "shop.a")
    assert repr(named) == "Pipeline('g', topics=['shop.b', 'shop.a'])"
    assert named.tables_by_topic() == {"shop.a": ("log", "s.a"), "shop.b": ("log", "s.b")}
    assert named.for_worker() is named.taken().require_names("a job") is named
    assert [sink.tables for sink in BatchJob(named, URL, KAFKA).pipeline.sinks] == [("s.b",), ("s.a",), ("log",)]


def test_some_topics_of_a_pipeline_that_names_its_topics() -> None:
    declared = pipeline(
        Append("a", columns=["n"], topics=["shop.a"]), Append("log", columns=["n"]), topics=["shop.a", "shop.b"]
    )
    assert declared.with_topics("shop.b").tables_by_topic() == {"shop.b": ("log",)}
    assert declared.tables_by_topic() == {"shop.a": ("a", "log"), "shop.b": ("log",)}
    for wrong in (("shop.c", "shop.a"), ()):
        with pytest.raises(ConfigError, match=r"with_topics\(\) takes some of its topics, got \["):
            declared.with_topics(*wrong)


def test_an_empty_group_names_no_table() -> None:
    bound = with_topics(pipeline(topics=Pattern(r"shop(\.(?P<name>.*))?")), "shop", "shop.", "shop.a")
    why = "Append('{name}'): the pattern's group 'name' matches nothing in topic 'shop'"
    assert bound.without_table == {"shop": why, "shop.": why.replace("'shop'", "'shop.'")}


EU_AND_US = Pattern(r"(eu|us)\.(?P<name>[a-z]+)")


def test_topics_of_one_table_whose_offsets_would_be_compared_stop_in_any_order() -> None:
    """The row of ``us.t`` at offset 3 may be newer than that of ``eu.t`` at offset 9, and would be dropped."""
    sink = Upsert("{name}", key=["id"], columns=["id"], offset_column="o")
    for topics in (("eu.t", "us.t", "eu.a"), ("us.t", "eu.a", "eu.t")):
        bound = with_topics(pipeline(sink, topics=EU_AND_US), *topics)
        assert {*bound.without_table} == {"eu.t", "us.t"}
        assert bound.without_table["eu.t"].startswith("Upsert('t'): topics 'eu.t' and 'us.t' have the same table")
        assert bound.without_table["us.t"].startswith("Upsert('t'): topics 'us.t' and 'eu.t' have the same table")
    with pytest.raises(ConfigError, match="store both with provenance="):
        pipeline(sink, topics=EU_AND_US).with_topics("eu.t", "us.t")
    assert pipeline(sink, topics=EU_AND_US).with_topics("eu.t").topics == ("eu.t",)


def test_a_table_with_a_name_is_one_table_of_all_topics() -> None:
    """Also without a pattern: a row of ``us.t`` would be dropped if ``eu.t`` had one of the key at a higher offset."""
    sink = Upsert("t", key=["id"], columns=["id"], offset_column="o")
    assert {*with_topics(pipeline(sink, topics=EU_AND_US), "eu.t", "us.a").without_table} == {"eu.t", "us.a"}
    assert pipeline(sink, topics=EU_AND_US).with_topics("eu.t").topics == ("eu.t",)
    why = r"Upsert\('t'\): topics 'a' and 'b' have the same table, and offsets of different topics do not say which"
    sinks: list[Any]
    for sinks in ([sink], [Upsert("t", key=["id"], columns=["id"], offset_column="o", topics=[t]) for t in "ab"]):
        with pytest.raises(ConfigError, match=why):
            pipeline(*sinks, topics=["a", "b"])
    stored = Upsert(
        "t", key=["id"], columns=["id"], offset_column="o", provenance={"topic": "topic", "partition": "partition"}
    )
    of_one = Upsert("t", key=["id"], columns=["id"], offset_column="o", topics=["a"])
    for sinks in ([stored], [of_one, Append("log", columns=["id"])]):
        assert pipeline(*sinks, topics=["a", "b"]).topics == ("a", "b")


SHARED: list[Any] = [
    Append("{name}", columns=["id"]),
    Upsert("{name}", key=["id"], columns=["id"]),
    Upsert("{name}", key=["id"], columns=["id", "at"], order_by="at"),
    Upsert("{name}", key=["id"], columns=["id"], offset_column="o", provenance={"topic": "t", "partition": "p"}),
    Upsert(lambda topic: topic.replace(".", "_"), key=["id"], columns=["id"], offset_column="o"),
]


@for_each(SHARED)
def test_topics_share_a_table_if_their_offsets_are_not_compared(sink: Any) -> None:
    assert with_topics(pipeline(sink, topics=EU_AND_US), "eu.t", "us.t").without_table == {}


@for_each([{"partition": "p"}, {"topic": "t"}])
def test_offsets_are_compared_without_both_the_topic_and_the_partition(provenance: Any) -> None:
    sink = Upsert("{name}", key=["id"], columns=["id"], offset_column="o", provenance=provenance)
    assert {*with_topics(pipeline(sink, topics=EU_AND_US), "eu.t", "us.t").without_table} == {"eu.t", "us.t"}


def declared(**options: Any) -> Callable[[], Any]:
    return lambda: Pipeline("g", **{"value": Json(dict), "sinks": [Append("t", columns=["n"])], **options})


def of_sink(sink: Any) -> Callable[[], Any]:
    return declared(topics=SHOP, sinks=[sink])


def frame(records: Any) -> Any:
    return records


ENGINE = cast("Engine", None)
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Pattern("shop(.*"), r"Pattern('shop(.*') is not a regular expression of Python's re: missing )"),
    (lambda: Pattern("(?P<n>a)(?P<n>b)"), "redefinition of group name 'n'"),
    (lambda: Pattern(""), "Pattern(''): give a regular expression as text, e.g. Pattern(r'shop"),
    (lambda: Pattern("(?<n>a)"), "unknown extension ?<n at position 1; a named group is (?P<name>...)"),
    (lambda: Pattern(cast("str", re.compile("a"))), "give a regular expression as text"),
    (lambda: Pattern(cast("str", b"a")), "Pattern(b'a'): give a regular expression as text"),
    (lambda: Pattern("^__.*"), "names that begin with '__' are Kafka's own: declare such a topic by its name"),
    (declared(topics="^shop.*"), "to give a regular expression, write topics=Pattern(...)"),
    (declared(topics=re.compile("shop.*")), "topics=re.compile(...): give topics=Pattern('shop.*')"),
    (declared(topics=[SHOP]), "is not one of several topics: give topics=Pattern("),
    (declared(topics={SHOP: Json(dict)}, value=None), "and its codec as value="),
    (declared(topics=SHOP, value=None), "value= is missing"),
    (declared(topics=SHOP, start=StartAt.latest()), "StartAt.latest is no first position for topics that are found"),
    (declared(topics=SHOP, start=StartAt.committed()), "give StartAt.earliest() or StartAt.time(...)"),
    (of_sink(Append("{table}")), r"{table} is not a named group of Pattern('shop\\.(?P<name>.+)'); it has {name}"),
    (of_sink(Append("{}")), "{} is not a named group"),
    (
        declared(
            topics=SHOP,
            value=Debezium(),
            key=Debezium(),
            sinks=[Upsert("{name}", key=["id"], columns=["id"], changes=True, offset_column="o", truncate="delete")],
        ),
        "truncate= needs topics by name, as each must have one partition",
    ),
    (of_sink(Append("{0}")), "{0} is not a named group"),
    (of_sink(Append("{name!r}")), "a group has no format and no conversion: write {name}"),
    (of_sink(Append("a{name")), "write {name} for a group of the pattern"),
    (declared(topics=Pattern("shop.(.*)"), sinks=[Append("{name}")]), "it has none: write (?P<name>...)"),
    (of_sink(Append("t", topics=["shop.a", "ship.a"])), "topics= names ship.a, which Pattern('shop"),
    (of_sink(Append("{name}", topics=["shop.a"])), "for each topic that the pattern matches: leave out its topics="),
    (declared(topics="a", sinks=[Append(str.upper)]), "give topics=Pattern(...), or name the table"),
    (lambda: pipeline(Append("a", columns=["n"]), topics="a").with_topics("b"), "takes some of its topics, got ['b']"),
    (lambda: pipeline().with_topics(5), "topic 5 does not match the pattern as a whole"),  # type: ignore[arg-type]
    (lambda: pipeline().with_topics(), "a pattern does not say which topics there are: name at least one"),
    (lambda: pipeline().with_topics("my.shop.a"), "topic 'my.shop.a' does not match the pattern as a whole"),
    (lambda: pipeline().with_topics("shop.a.b"), "has a dot"),
    (lambda: Worker(pipeline(), engine=URL, kafka=KAFKA, partitions=[("shop.a", 0)]), "name them in topics="),
    (lambda: Reload([pipeline()], engine=URL, kafka=KAFKA), "a reload or batch takes topics by name"),
    (lambda: BatchJob(pipeline(), engine=URL, kafka=KAFKA), "takes topics by name, and only a worker finds them"),
    (lambda: Admin(URL).dead_letters(pipeline()), "a replay takes topics by name"),
    (lambda: process(pipeline(), ENGINE, []), "the test kit takes topics by name"),
    (lambda: check_exactly_once(pipeline, URL, []), "the test kit takes topics by name"),
    (lambda: Assignment(cast("Consumer", None), Ledger(URL, "g"), cast("Any", SHOP), kafka=KAFKA), "by pattern"),
    (
        lambda: SparkPipeline("g", topics=cast("Any", SHOP), frames={"a": Frame(frame, Append("a"))}),
        "SparkPipeline('g'): Spark's jobs take topics by name",
    ),
]


@for_each(REFUSED, lambda row: row[1])
def test_what_is_refused_says_what_to_write(row: tuple[Callable[[], Any], str]) -> None:
    make, message = row
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()


def test_a_sink_of_a_users_own_takes_all_topics_that_match() -> None:
    class Others(Append[Any, Any]):
        def takes(self, topic: str) -> bool:
            return topic != "shop.a"

    bound = with_topics(pipeline(Others("t", columns=["n"])), "shop.a", "shop.b")
    assert isinstance(bound, AnyPipeline)
    assert list(bound.without_table) == ["shop.a"]
    assert "no sink takes records of shop.a" in bound.without_table["shop.a"]
