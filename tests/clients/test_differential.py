"""A sequence of each theme to kproc and to a real Kafka: no answer differs but as kproc/COMPATIBILITY.md says."""

from __future__ import annotations

import pytest

from kproc.broker.request.releases import load_releases
from kproc.wire.header import ApiKey, kafka_name
from tests.differential.brokers import both_brokers, common_versions
from tests.differential.report import Report
from tests.differential.side import Side
from tests.differential.themes import THEMES, WITHOUT_RIGHTS
from tests.differential.work import Task, run_all
from tests.support.kafka_jars import KAFKA_VERSION, missing_reason

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
_SEED, _SEQUENCES, _WORKERS = 41, 1, 3
# They change the members of a quorum of controllers, which kproc does not have.
_OF_QUORUMS = {"AddRaftVoter", "RemoveRaftVoter", "UnregisterController"}


def test_kproc_responds_as_kafka() -> None:
    _compare([Task(theme, number, _SEED) for number in range(_SEQUENCES) for theme in THEMES])


@pytest.mark.slow  # Nearly a minute. In short: tests/unit/broker/request/test_rights.py.
def test_kproc_authorizes_as_kafka() -> None:
    """Hundreds of requests of a guest, under rules that are made and taken away."""
    themes = [theme for theme in THEMES if theme not in WITHOUT_RIGHTS]
    _compare([Task(theme, number, _SEED, rights=True) for number in range(_SEQUENCES) for theme in themes])


def _compare(tasks: list[Task]) -> None:
    report = Report()
    with both_brokers(with_authorizer=any(task.rights for task in tasks)) as pair:
        _compare_versions(pair[1])
        results = run_all(pair, tasks, common_versions(pair), {}, workers=_WORKERS)
        told = [line for result in results for line in report.take(result)]
    assert report.is_clean, "\n".join(told)
    assert report.sequences == len(tasks)


def _compare_versions(kafka: str) -> None:
    """The table of the emulated release is Kafka's answer to ApiVersions."""
    release = load_releases()[KAFKA_VERSION.rpartition(".")[0]]
    side = Side(kafka)
    software = {"client_software_name": "test", "client_software_version": "1"}
    found = side.ask("api_versions", 4, software)
    side.close()
    versions = {
        kafka_name(ApiKey(row["api_key"])): (row["min_version"], row["max_version"])
        for row in found["api_keys"]
    }
    assert versions.keys() - release.versions.keys() <= _OF_QUORUMS
    assert {name: versions.get(name) for name in release.versions} == release.versions
    ranges = {row["name"]: (row["min_version"], row["max_version"]) for row in found["supported_features"]}
    assert ranges == release.features
