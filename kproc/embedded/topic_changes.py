"""Changes of an embedded broker's topics and groups, as requests to the broker. Each one uses a new connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.config.values import wire_text
from kproc.client.error_texts import error_text
from kproc.client.requests import group_configuration, topic_creation
from kproc.embedded.process import RequestFailed
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.client import Client

_TOPIC_TIMEOUT_MS: Final = 10_000


def create_topic(
    connect: Callable[[], Client], name: str, partitions: int, configs: Mapping[str, object]
) -> None:
    """Create a topic and return when every client can find it. Raises RuntimeError with the broker's reason."""
    settings = [(key, wire_text(value)) for key, value in configs.items()]
    topic = topic_creation(name, partitions=partitions, replication_factor=1, configs=settings)
    _change_topic(connect, ApiKey.CREATE_TOPICS, {"topics": [topic], "validate_only": False}, "topics")


def delete_topic(connect: Callable[[], Client], name: str) -> None:
    """Delete a topic with its records. Raises RuntimeError with the broker's reason."""
    _change_topic(connect, ApiKey.DELETE_TOPICS, {"topic_names": [name]}, "responses")


def configure_group(connect: Callable[[], Client], name: str, configs: Mapping[str, object]) -> None:
    """Set configs of a group, which need not exist yet. Raises RuntimeError with the broker's reason."""
    settings = {key: wire_text(value) or "" for key, value in configs.items()}
    with connect() as client:
        answer = client.call_latest(ApiKey.INCREMENTAL_ALTER_CONFIGS, group_configuration(name, settings))
    [result] = answer["responses"]
    if result["error_code"]:
        raise RequestFailed(result["error_code"], f"group {name!r}: {result['error_message']}")


def _change_topic(
    connect: Callable[[], Client], api_key: ApiKey, fields: dict[str, Any], results: str
) -> None:
    """Send a request that changes one topic. `results` names the response's field with a row for each topic."""
    with connect() as client:
        [result] = client.call_latest(api_key, {**fields, "timeout": _TOPIC_TIMEOUT_MS})[results]
    if result["error_code"]:
        reason = result.get("error_message") or error_text(result["error_code"])
        raise RequestFailed(result["error_code"], f"topic {result['name']!r}: {reason}")
