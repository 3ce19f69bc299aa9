"""Descriptions of settings: complete, in whole sentences, and found by a name with a mistake."""

from __future__ import annotations

from collections import Counter

import pytest

from kproc.broker.cluster.client_metrics_config import CLIENT_METRICS_CONFIGS
from kproc.broker.cluster.group_config import GROUP_CONFIGS
from kproc.broker.cluster.topic_config import TOPIC_CONFIGS
from kproc.broker.config import DYNAMIC_UNHONOURED, SETTINGS
from kproc.cli import setting_reference as reference
from tests.support.cases import in_one_test

DESCRIPTIONS = list(reference.all_descriptions())


def facts(name: str, scope: str = reference.BROKER) -> dict[str, str]:
    (found,) = [each for each in reference.find_descriptions(name) if each.scope == scope]
    return dict(found.facts)


def test_every_setting_is_described_once() -> None:
    assert Counter((each.scope, each.name) for each in DESCRIPTIONS) == Counter(
        [(reference.BROKER, name) for name in (*SETTINGS, *DYNAMIC_UNHONOURED)]
        + [(reference.TOPIC, name) for name in TOPIC_CONFIGS]
        + [(reference.GROUP, name) for name in GROUP_CONFIGS]
        + [(reference.CLIENT_METRICS, name) for name in CLIENT_METRICS_CONFIGS]
    )


def test_every_description_is_complete() -> None:
    for each in DESCRIPTIONS:
        assert each.text[0].isalnum(), each.name
        assert each.text.endswith((".", ";")), each.name
        assert {"type", "default", "dynamic", "since"} <= dict(each.facts).keys(), each.name
        assert each.section, each.name


@in_one_test(
    ("name", "label", "text"),
    [
        ("log.retention.ms", "type", "long, in ms"),
        ("log.retention.ms", "default", "604800000 (7 days)"),
        ("log.segment.bytes", "range", "at least 1048576"),
        ("log.segment.bytes", "default", "1073741824 (1 GiB)"),
        ("log.segment.bytes", "for one topic", "segment.bytes"),
        ("log.retention.hours", "for one topic", "retention.ms"),
        ("num.io.threads", "default", "half of the CPUs, at least 1"),
        ("num.io.threads", "dynamic", "yes, with kproc.transport=process"),
        ("log.retention.ms", "dynamic", "yes"),
        ("num.partitions", "dynamic", "no: read at the start"),
        ("ssl.keystore.location", "dynamic", "yes, with the prefix of a listener"),
        ("kproc.ring.bytes", "range", "a power of two from 262144 to 1073741824"),
        ("kproc.flush", "range", "one of group, none"),
        ("kproc.flush", "environment", "KPROC_FLUSH"),
        ("sasl.jaas.config", "for one listener", "listener.name.<listener>.<mechanism>.sasl.jaas.config"),
        ("log.cleaner.io.buffer.size", "type", "int, in bytes"),
        ("quota.window.size.seconds", "type", "int, in seconds"),
    ],
)
def test_fact_of_setting(name: str, label: str, text: str) -> None:
    assert facts(name)[label] == text


def test_topic_setting_names_the_default_of_the_broker() -> None:
    found = facts("retention.ms", reference.TOPIC)
    assert found["default"] == (
        "that of the broker: log.retention.ms, else log.retention.minutes, else log.retention.hours"
    )
    assert facts("consumer.session.timeout.ms", reference.GROUP)["range"] == "from 45000 to 60000"


def test_setting_without_effect_says_why() -> None:
    (found,) = reference.find_descriptions("offsets.topic.replication.factor")
    assert found.unhonoured == "one host keeps one replica"
    for each in DESCRIPTIONS:
        if each.scope in (reference.GROUP, reference.CLIENT_METRICS):
            assert bool(each.unhonoured) == (each.scope == reference.CLIENT_METRICS), each.name
    # Of min.insync.replicas and others, the broker has the default and each topic may have its own.
    scopes = {each.scope: each.unhonoured for each in reference.find_descriptions("min.insync.replicas")}
    assert scopes == dict.fromkeys((reference.BROKER, reference.TOPIC), "one host keeps one replica")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("KPROC_NUM_IO_THREADS", "num.io.threads"),
        ("listener.name.out.max.connections", "max.connections"),
        ("listener.name.out.plain.sasl.jaas.config", "sasl.jaas.config"),
        ("background.threads", "background.threads"),
    ],
)
def test_other_spelling_finds_setting(name: str, found: str) -> None:
    assert [each.name for each in reference.find_descriptions(name)] == [found]


def test_similar_names_of_misspelt_setting() -> None:
    assert reference.similar_names("log.flush.intervall.ms")[0] == "log.flush.interval.ms"
    assert reference.similar_names("num_io_thread")[0] == "num.io.threads"
    assert "flush.ms" in reference.similar_names("flush")
    assert reference.similar_names("retention.m", reference.TOPIC)[0] == "retention.ms"
    assert reference.similar_names("zzzz") == []
