"""Settings in environment variables: names, precedence, and variables that are no settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kproc.broker.config import KNOWN_UNHONOURED, SETTINGS, Config, ConfigError
from kproc.broker.config.environment import OTHER_VARIABLES, PREFIX, read_variables, setting_of, variable_of
from tests.support.cases import in_one_test

ROOT = Path(__file__).resolve().parents[4]


def values(**environment: str) -> dict[str, str]:
    return {name: read.value for name, read in read_variables(environment, SETTINGS).items()}


def test_every_setting_has_a_variable_of_its_own() -> None:
    variables = [variable_of(name) for name in (*SETTINGS, *KNOWN_UNHONOURED)]
    assert len(set(variables)) == len(variables)
    assert not set(variables) & OTHER_VARIABLES
    assert [setting_of(variable_of(name), SETTINGS) for name in SETTINGS] == list(SETTINGS)


def test_variables_of_kprocs_own_code_are_not_taken_for_settings() -> None:
    """A variable of a command, such as KPROC_BOOTSTRAP, must not keep a broker from starting."""
    files = [*ROOT.glob("kproc/**/*.py"), *(each for each in ROOT.glob("scripts/*") if each.is_file())]
    named = {
        variable
        for file in files
        if file.name != "environment.py"
        for variable in re.findall(r"\bKPROC_[A-Z_]*[A-Z]\b", file.read_text(encoding="utf-8"))
    }
    settings = {variable_of(name) for name in SETTINGS}
    assert "KPROC_BOOTSTRAP" in named
    assert named - settings <= OTHER_VARIABLES


@in_one_test(
    ("variable", "name"),
    [
        ("KPROC_NUM_IO_THREADS", "num.io.threads"),
        ("KPROC_FLUSH", "kproc.flush"),
        ("KPROC_ZOOKEEPER_CLIENTCNXNSOCKET", "zookeeper.clientCnxnSocket"),
        ("KPROC_LISTENER_NAME_OUT_SSL_KEYSTORE_LOCATION", "listener.name.out.ssl.keystore.location"),
        ("KPROC_LISTENER_NAME_MY_LAN_MAX_CONNECTIONS", "listener.name.my_lan.max.connections"),
        (
            "KPROC_LISTENER_NAME_OUT_SCRAM_SHA_256_SASL_JAAS_CONFIG",
            "listener.name.out.scram-sha-256.sasl.jaas.config",
        ),
        ("KPROC_NUM_IO_THREAD", "num.io.thread"),
    ],
)
def test_variable_names_setting(variable: str, name: str) -> None:
    assert values(**{variable: "x"}) == {name: "x"}


def test_other_variables_and_links_of_services_are_ignored() -> None:
    assert values(PATH="/bin", KPROC_BOOTSTRAP="a:1", KPROC_SERVICE_HOST="10.0.0.1") == {}
    links = ("KPROC_PORT", "KPROC_PORT_9092_TCP_ADDR", "KPROC_LAN_SERVICE_PORT_HTTP", "KPROC_SERVICE_PORT")
    assert values(**dict.fromkeys(links, "tcp://10.0.0.1:9092")) == {}
    # A setting of Kafka keeps its name although it ends like such a link.
    assert values(KPROC_ADVERTISED_PORT="1") == {"advertised.port": "1"}


def test_environment_is_between_file_and_set(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nnum.io.threads=2\nmessage.max.bytes=2000\n")
    environment = {"KPROC_NUM_PARTITIONS": "3", "KPROC_NUM_IO_THREADS": "3"}
    config = Config.build({"num.io.threads": "4"}, file=file, environment=environment)
    assert (config.message_max_bytes, config.num_partitions, config.num_io_threads) == (2000, 3, 4)
    assert {"num.partitions", "num.io.threads", "message.max.bytes"} <= config.explicit_settings


def test_error_names_variable() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.build(environment={"KPROC_NUM_IO_THREADS": "many", "KPROC_NUM_IO_THREAD": "2"})
    assert str(caught.value).splitlines() == [
        "KPROC_NUM_IO_THREADS: num.io.threads=many: expected a whole number",
        "KPROC_NUM_IO_THREAD: unknown setting num.io.thread in the environment; did you mean num.io.threads?",
    ]
    with pytest.raises(ConfigError, match=r"KPROC_FLUSH and KPROC_KPROC_FLUSH both set kproc\.flush"):
        Config.build(environment={"KPROC_FLUSH": "none", "KPROC_KPROC_FLUSH": "none"})


def test_unknown_variable_only_warns_if_unknown_settings_do() -> None:
    warnings: list[str] = []
    environment = {f"{PREFIX}UNKNOWN_SETTINGS": "warn", f"{PREFIX}NO_SUCH": "1", f"{PREFIX}ZOOKEEPER_CONNECT": "a"}
    Config.build(environment=environment, on_warning=warnings.append)
    assert warnings == [
        "KPROC_NO_SUCH: no.such has no effect: unknown setting",
        "KPROC_ZOOKEEPER_CONNECT: zookeeper.connect has no effect: kproc does not support this Kafka setting",
    ]
