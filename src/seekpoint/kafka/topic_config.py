"""Reads from a topic's configuration whether it is compacted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # not re-exported

from seekpoint.errors import KafkaUnavailable
from seekpoint.kafka.config import make_admin
from seekpoint.kafka.questions import NO_RIGHT

ASK = 10.0  # seconds to wait for an answer


def compacted(kafka: Mapping[str, Any], topics: Collection[str]) -> dict[str, bool | None]:
    """Whether each topic is compacted, which keeps only the newest record of each key.

    None if this client may not ask (``DescribeConfigs`` on the topic), False for a topic that does not exist. Raises
    KafkaUnavailable.
    """
    admin = make_admin(kafka)
    futures = admin.describe_configs(
        [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(set(topics))], request_timeout=ASK
    )
    return {resource.name: _answer(resource.name, future) for resource, future in futures.items()}


def _answer(topic: str, future: Any) -> bool | None:
    try:
        policy = future.result(ASK + 1)["cleanup.policy"].value
    except KafkaException as error:
        if error.args[0].code() in NO_RIGHT:
            return None
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return False
        raise KafkaUnavailable(
            f"no answer about the configuration of topic {topic!r}: {error.args[0].str()}"
        ) from error
    except TimeoutError as error:
        raise KafkaUnavailable(f"no answer about the configuration of topic {topic!r} within {ASK} s") from error
    return "compact" in str(policy)
