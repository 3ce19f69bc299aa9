from __future__ import annotations

import importlib

import pytest

import kproc.broker.api
from kproc.broker.request import registry
from kproc.broker.request.registry import Api, advertised, api, lookup
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.cases import in_one_test

# Apache Kafka 4.3 on a client listener.
KAFKA = {
    ApiKey.METADATA: (0, 13),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
}


@pytest.fixture(autouse=True)
def _admin_apis() -> None:
    for key in KAFKA:
        importlib.import_module(f"kproc.broker.api.{key.name.lower()}")


@pytest.fixture
def empty_table(monkeypatch) -> dict[int, Api]:
    table: dict[int, Api] = {}
    monkeypatch.setattr(registry, "APIS", table)
    return table


@in_one_test("key", KAFKA)
def test_api_versions_match_kafka_and_codec(key):
    entry = lookup(key)
    assert (entry.lo, entry.hi) == KAFKA[key]
    known = codec.supported_versions(key)
    assert entry.lo in known
    assert entry.hi in known
    assert (int(key), *KAFKA[key]) in advertised()


@in_one_test("key", KAFKA)
def test_an_api_has_an_answer_for_every_error(key):
    assert lookup(key).error_response is not None


def test_only_produce_shows_versions_that_it_does_not_serve(empty_table):
    @api(ApiKey.PRODUCE, versions=(3, 13), advertised_from=0)
    def handle_produce(context, request):
        return None

    assert advertised() == [(0, 0, 13)]
    assert not lookup(0).serves(2)
    assert lookup(0).serves(3)
    assert lookup(0).serves(13)
    assert not lookup(0).serves(14)


def test_two_files_for_one_key_are_a_mistake(empty_table):
    def handle(context, request):
        return None

    api(ApiKey.FETCH, versions=(4, 18))(handle)

    def again(context, request):
        return None

    again.__module__ = "somewhere.else"
    with pytest.raises(AssertionError, match="FETCH twice"):
        api(ApiKey.FETCH, versions=(4, 18))(again)


@pytest.mark.parametrize("versions", [(3, 2), (-1, 2)])
def test_a_range_that_is_none_is_a_mistake(empty_table, versions):
    with pytest.raises(AssertionError, match="FETCH: versions"):
        api(ApiKey.FETCH, versions=versions)


def test_an_api_without_an_error_answer_has_none(empty_table):
    @api(ApiKey.FETCH, versions=(4, 18))
    def handle_fetch(context, request):
        return None

    assert lookup(ApiKey.FETCH).error_response is None
    assert lookup(ApiKey.PRODUCE) is None


def test_a_listed_file_that_is_missing_is_an_error(monkeypatch):
    monkeypatch.setattr(kproc.broker.api, "MODULES", ("api.metadata", "api.no_such_api"))
    with pytest.raises(ModuleNotFoundError, match="no_such_api"):
        kproc.broker.api.load_all()
