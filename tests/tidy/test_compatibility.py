"""COMPATIBILITY.md says what the code and the lists of expectations say."""

from __future__ import annotations

import re

import pytest

from kproc.broker import api
from kproc.broker.request.registry import advertised
from kproc.wire.header import ApiKey
from tests.conformance import kafka_python, librdkafka, outcomes
from tests.differential import rules
from tests.tidy.sources import ROOT

DOCUMENT = ROOT / "kproc" / "COMPATIBILITY.md"


@pytest.fixture(scope="module")
def document() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


def api_name(key: int) -> str:
    """Kafka's spelling: ApiKey.CREATE_TOPICS is CreateTopics."""
    return "".join(part.capitalize() for part in ApiKey(key).name.split("_"))


def test_table_of_apis_is_the_registry(document: str) -> None:
    api.load_all()
    shown = {
        name: (int(low), int(high))
        for name, low, high in re.findall(r"^\| (\w+) \| (\d+)-(\d+) \|", document, re.MULTILINE)
    }
    assert shown == {api_name(key): (low, high) for key, low, high in advertised()}


def test_readme_has_the_number_of_apis() -> None:
    api.load_all()
    shown = re.findall(r"^- \*\*APIs\*\*: (\d+),", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert shown == [str(len(advertised()))]


@pytest.mark.parametrize("suite", [librdkafka, kafka_python], ids=["librdkafka", "kafka-python"])
def test_document_shows_how_each_suite_ends(document: str, suite: type) -> None:
    """The message of a failure is what has to stand there."""
    lines = "\n".join(outcomes.in_words(outcomes.load(suite.EXPECTATIONS)))
    assert f"\n{lines}\n" in document, lines


def test_files_it_names_exist(document: str) -> None:
    named = set(re.findall(r"`((?:scripts|kproc|tests|bench)/[\w./-]+)`", document))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_each_rule_of_the_comparison_with_kafka_has_its_heading(document: str) -> None:
    areas = set(re.findall(r"^#### (.+)$", document, re.MULTILINE))
    assert set(rules.RULES) <= areas, f"not in section 2: {sorted(set(rules.RULES) - areas)}"
