"""Counts of roles as dynamic configs: Kafka's rule of half and double, in Kafka's words."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.dynamic_settings import check_processors, processors_in_force, settings_in_force
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.records import BrokerConfigSet
from kproc.broker.cluster.role_counts import check_change, role_count_max
from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.common.errors import ErrorCode, KafkaError

CONFIG = Config.build({"num.io.threads": 4, "num.network.threads": 5})


def image_with(**configs: str) -> ClusterImage:
    image = ClusterImage()
    for name, value in configs.items():
        image.apply_records([BrokerConfigSet("1", name.replace("_", "."), value)], image.version + 1)
    return image


def refusal(image: ClusterImage, node: str, after: dict[str, str], config: Config = CONFIG) -> str | None:
    """What it is refused with, or None."""
    try:
        in_force = settings_in_force(image, config).overrides
        check_change(
            image.broker_configs.get(node, {}), in_force, config, node, {**image.broker_configs, node: after}
        )
    except KafkaError as error:
        return f"{error.message}" if error.code == ErrorCode.INVALID_REQUEST else repr(error)
    return None


@pytest.mark.parametrize("count", ["2", "3", "4", "8"])
def test_from_half_to_double_is_allowed(count: str) -> None:
    assert refusal(image_with(), "1", {"num.io.threads": count}) is None


def test_half_is_by_integer_division() -> None:
    assert refusal(image_with(), "1", {"num.network.threads": "2"}) is None


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        ("1", "value should be at least half the current value 4"),
        ("9", "value should not be greater than double the current value 4"),
        ("0", "value should be at least 1"),
    ],
)
def test_more_or_less_is_refused_in_kafkas_words(count: str, reason: str) -> None:
    told = refusal(image_with(), "1", {"num.io.threads": count})
    assert told == f"Dynamic thread count update validation failed for num.io.threads={count}, {reason}"


def test_half_and_double_apply_to_the_value_in_force() -> None:
    image = image_with(num_io_threads="8")
    assert refusal(image, "1", {"num.io.threads": "16"}) is None
    assert refusal(image, "1", {"num.io.threads": "3"}) is not None


def test_taking_an_override_back_is_a_change_as_well() -> None:
    image = image_with(num_io_threads="12")
    assert "at least half the current value 12" in str(refusal(image, "1", {}))


def test_cluster_default_changes_nothing_under_override() -> None:
    image = image_with(num_io_threads="4")
    assert refusal(image, "", {"num.io.threads": "100"}) is None


def test_listener_is_measured_by_its_own_count() -> None:
    key = "listener.name.external.num.network.threads"
    assert refusal(image_with(), "1", {key: "10"}) is None, "5 until now, by the plain setting"
    assert refusal(image_with(), "1", {key: "11"}) is not None


def test_host_has_its_own_limit() -> None:
    most = role_count_max()
    image = image_with(num_io_threads=str(most))
    assert f"not be greater than {most} on this host" in str(
        refusal(image, "1", {"num.io.threads": str(most + 1)})
    )


def test_roles_of_one_process_are_as_many_as_at_the_start() -> None:
    config = Config.build({"num.io.threads": 4, "kproc.transport": "thread"})
    told = refusal(image_with(), "1", {"num.io.threads": "5"}, config)
    assert "Cannot update these configs dynamically: [num.io.threads]" in str(told)


def test_processor_sets_follow_existing_listeners() -> None:
    config = Config.build(
        {
            "num.network.threads": "3",
            "listeners": "PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
            "listener.name.external.num.network.threads": "2",
        }
    )
    assert processors_in_force(config, DynamicSettings()) == {"": 3, "external": 2}
    changed = {"num.network.threads": "4", "listener.name.external.num.network.threads": "1"}
    assert processors_in_force(config, DynamicSettings(changed)) == {"": 4, "external": 1}
    gone = {**changed, "listeners": "PLAINTEXT://127.0.0.1:0"}
    assert processors_in_force(config, DynamicSettings(gone)) == {"": 4}


def test_network_threads_of_all_listeners_together_are_bounded() -> None:
    """Each listener's count by itself may be doubled; every Processor has a place of its own in shared memory."""
    names = [f"l{number}" for number in range(28)]
    config = Config.build(
        {
            "num.network.threads": 16,
            "listeners": ",".join(f"{name}://127.0.0.1:0" for name in names),
            "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
            "advertised.listeners": "l0://127.0.0.1:1",
        }
    )
    stored = {"1": {f"listener.name.{name}.num.network.threads": "16" for name in names[:26]}}
    check_processors(config, image_with(), stored)
    stored["1"]["listener.name.l26.num.network.threads"] = "16"
    with pytest.raises(KafkaError, match="448 network threads of all listeners together are more than 447"):
        check_processors(config, image_with(), stored)


def test_unusable_stored_listeners_block_no_other_change() -> None:
    stored = {"1": {"listeners": "GONE://127.0.0.1:0", "num.network.threads": "6"}}
    check_processors(CONFIG, image_with(listeners="GONE://127.0.0.1:0"), stored)
