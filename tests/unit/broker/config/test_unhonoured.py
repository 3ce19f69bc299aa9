"""Names of settings that are unknown, removed or without effect."""

from __future__ import annotations

import re

import pytest

from kproc.broker.config import Config, ConfigError
from kproc.broker.storage.log_config import LogConfig
from tests.support.cases import in_one_test


def build(warnings: list[str] | None = None, **kwargs: object) -> Config:
    sink = warnings if warnings is not None else []
    settings = {name.replace("_", "."): value for name, value in kwargs.items()}
    return Config.build(settings, on_warning=sink.append)


# -- unknown and unhonoured names


@in_one_test(
    ("name", "hint"),
    [
        ("num.io.thread", "num.io.threads"),
        ("num_io_threads", "num.io.threads"),
        ("log.dir.s", "log.dirs"),
        ("kproc.transprot", "kproc.transport"),
        ("broker.rak", "broker.rack"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_nearest_name(name, hint):
    with pytest.raises(
        ConfigError, match=rf"unknown setting {re.escape(name)} .*did you mean {re.escape(hint)}\?"
    ):
        Config.build({name: "1"})


def test_a_name_like_no_other_is_refused_without_a_guess():
    with pytest.raises(ConfigError, match=r"^unknown setting qqq in --set qqq$"):
        Config.build({"qqq": "1"})


def test_a_kafka_setting_of_no_effect_warns():
    warnings: list[str] = []
    build(warnings, broker_rack="r1", zookeeper_connect="z:1", sasl_login_class="x.y")
    assert [warning.split()[0] for warning in warnings] == [
        "broker.rack",
        "zookeeper.connect",
        "sasl.login.class",
    ]


def test_listener_settings_warn_and_misspelt_are_rejected():
    warnings: list[str] = []
    settings = {
        "listener.name.plaintext.queued.max.requests": "5",
        "listener.name.x.ssl.keystore.location": "/k",
    }
    Config.build(settings, on_warning=warnings.append)
    assert len(warnings) == 2
    with pytest.raises(ConfigError, match="unknown setting"):
        Config.build({"listener.name.plaintext.max.konnections": "5"})


@pytest.mark.parametrize("text", ["delete,delete", "delete,", " delete ,,delete"])
def test_file_with_a_repeated_or_empty_list_element_warns(text: str) -> None:
    """As in Kafka such elements are dropped: a properties file of Kafka's must not keep kproc from starting."""
    warnings: list[str] = []
    assert build(warnings, log_cleanup_policy=text, ssl_enabled_protocols="TLSv1.3").log_cleanup_policy == (
        "delete",
    )
    (warning,) = warnings
    assert "Such elements are ignored" in warning


def test_log_cleanup_policy_may_be_empty() -> None:
    """Kafka 4.3 takes it at the start and at run time: records are kept for ever."""
    warnings: list[str] = []
    config = build(warnings, log_cleanup_policy="")
    assert config.log_cleanup_policy == ()
    assert warnings == []
    assert not LogConfig.of(config).is_deleting


def test_non_default_value_without_effect_warns():
    warnings: list[str] = []
    build(warnings, log_cleanup_policy="delete", min_insync_replicas="1")
    assert warnings == []
    config = build(warnings, log_cleanup_policy="compact", default_replication_factor=3)
    assert config.log_cleanup_policy == ("compact",)
    assert config.default_replication_factor == 3
    assert "kproc.clamp.replication.factor" in warnings[-1]


def test_unknown_settings_warn_where_that_is_wanted(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("my.plugin.setting=1\nkproc.unknown.settings=warn\nnum.partitons=3\n")
    warnings: list[str] = []
    Config.build(file=file, on_warning=warnings.append)
    assert warnings == [
        f"{file}:1: my.plugin.setting has no effect: unknown setting",
        f"{file}:3: num.partitons has no effect: unknown setting; did you mean num.partitions?",
    ]


def test_removed_settings_warn_and_name_the_replacement() -> None:
    warnings: list[str] = []
    Config.build({"kproc.telemetry": "all"}, on_warning=warnings.append)
    assert len(warnings) == 1
    assert "kproc.telemetry has no effect" in warnings[0]
    assert "kproc.metrics.listener" in warnings[0]
