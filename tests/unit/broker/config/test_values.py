"""Kinds of values: parsed, formatted, and rejected without showing secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.config import Config, ConfigError, EndPoint
from kproc.broker.config.listeners import split_address
from kproc.broker.config.values import LONG_MAX, Kind, parse_value, without_url_secrets
from tests.support.bytecodes import count_bytecodes
from tests.support.cases import in_one_test


def build(warnings: list[str] | None = None, **kwargs: object) -> Config:
    sink = warnings if warnings is not None else []
    settings = {name.replace("_", "."): value for name, value in kwargs.items()}
    return Config.build(settings, on_warning=sink.append)


@in_one_test(
    ("name", "text"),
    [
        ("auto.create.topics.enable", "true"),
        ("log.cleanup.policy", "delete"),
        ("listeners", "PLAINTEXT://127.0.0.1:9092"),
        ("log.retention.minutes", None),
        ("log.retention.ms", "604800000"),
        ("log.cleaner.min.cleanable.ratio", "0.5"),
    ],
)
def test_values_are_written_as_kafka_writes_them(name, text):
    assert Config().wire_value(name) == text


# -- kinds


@in_one_test(
    ("kind", "raw", "value"),
    [
        (Kind.BOOLEAN, " TRUE ", True),
        (Kind.BOOLEAN, False, False),
        (Kind.INT, " +7 ", 7),
        (Kind.INT, "-2147483648", -(2**31)),
        (Kind.LONG, "9223372036854775807", LONG_MAX),
        (Kind.SHORT, "32767", 32767),
        (Kind.DOUBLE, "1.5e3", 1500.0),
        (Kind.DOUBLE, ".5", 0.5),
        (Kind.DOUBLE, 2, 2.0),
        (Kind.LIST, " a , b ,, ", ("a", "b")),
        (Kind.LIST, "", ()),
        (Kind.LIST, ["a", "b"], ("a", "b")),
        (Kind.STRING, "  x y ", "x y"),
        (Kind.SIZE, "64MiB", 64 << 20),
        (Kind.SIZE, "2k", 2048),
        (Kind.SIZE, "1 GB", 1 << 30),
        (Kind.SIZE, "77", 77),
    ],
)
def test_text_becomes_a_value(kind, raw, value):
    assert parse_value(kind, raw, "x") == value


@in_one_test(
    ("kind", "raw"),
    [
        (Kind.BOOLEAN, "yes"),
        (Kind.BOOLEAN, 1),
        (Kind.INT, "2147483648"),
        (Kind.INT, "1_000"),
        (Kind.INT, "1.0"),
        (Kind.INT, ""),
        (Kind.INT, True),
        (Kind.INT, "64k"),
        (Kind.INT, "\u0661"),
        (Kind.LONG, "9223372036854775808"),
        (Kind.SHORT, "32768"),
        (Kind.DOUBLE, "1,5"),
        (Kind.DOUBLE, "nan"),
        (Kind.DOUBLE, True),
        (Kind.LIST, 3),
        (Kind.STRING, 3),
        (Kind.DOUBLE, "1e999"),
        (Kind.DOUBLE, "-1e999"),
        (Kind.DOUBLE, "9" * 5000),
        (Kind.DOUBLE, float("nan")),
        (Kind.DOUBLE, float("inf")),
        (Kind.DOUBLE, 1 << 20_000),
        (Kind.SHORT, "9" * 5000),
        (Kind.INT, "9" * 5000),
        (Kind.INT, "-" + "9" * 5000),
        (Kind.LONG, "9" * 32_000),
        (Kind.LONG, 1 << 20_000),
        (Kind.SIZE, "9" * 5000),
        (Kind.SIZE, "9" * 5000 + "k"),
        (Kind.SIZE, "64 parsecs"),
        (Kind.SIZE, "-1k"),
    ],
)
def test_wrong_text_is_refused_by_name(kind, raw):
    with pytest.raises(ConfigError, match=r"^some\.name="):
        parse_value(kind, raw, "some.name")


def test_an_error_stays_on_one_short_line():
    with pytest.raises(ConfigError) as caught:
        build(num_io_threads="7\n" * 500)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


# -- listeners


def listeners(text: str, **settings: object) -> tuple[EndPoint, ...]:
    return build(listeners=text, **settings).listeners


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.oauthbearer.jwks.endpoint.url", "htp://user:hunter2@host/keys?token=hunter2"),
        ("num.io.threads", "https://user:hunter2@host"),
        ("listeners", "PLAINTEXT://user:hunter2@host:9092"),
        ("log.retention.ms", "https://host/?password=hunter2"),
    ],
)
def test_error_about_setting_shows_no_password_of_url(name: str, value: str) -> None:
    settings = {name: value}
    if name.startswith("sasl."):
        settings |= {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER"}
    with pytest.raises(ConfigError) as caught:
        Config.build(settings)
    assert "hunter2" not in str(caught.value)
    assert "[hidden]" in str(caught.value)


def test_service_unit_bounds_memory_and_core_dumps() -> None:
    text = (Path(__file__).resolve().parents[4] / "scripts/service/kproc.service").read_text()
    assert "\nLimitCORE=0\n" in text
    assert "\nMemoryMax=75%\n" in text


def test_url_secrets_are_hidden_in_linear_work() -> None:
    """A client's value of 32 kB can consist of beginnings of URLs."""
    text = "://" * 11_000
    assert count_bytecodes(lambda: without_url_secrets(text), unless_in=__file__) < 500
    assert without_url_secrets(text) == text
    assert (
        without_url_secrets("a https://u:p@h/x?y=z b http://h ")
        == "a https://[hidden]@h/x?[hidden] b http://h "
    )


@pytest.mark.parametrize(
    "text",
    ["https://u:hunter2%s@h/k" % ("x" * 600), "https://u:hun@hunter2@h/k", "https://u:hunter2://x@h,https://h/k"],
)
def test_password_in_url_is_hidden_whatever_it_contains(text: str) -> None:
    assert "hunter2" not in without_url_secrets(text)
    assert without_url_secrets(text).startswith("https://[hidden]@h")


@pytest.mark.parametrize("text", ["user:hunter2@host:9092", "user:hunter2@host", "a://user:hunter2@host:1"])
def test_address_with_password_is_rejected_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_address(text, default_port=9092)
    assert "hunter2" not in str(caught.value)
