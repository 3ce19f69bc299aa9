"""BrokerFigures: what Handlers answered, as series that are bounded, go on over restarts and never count twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.observe import broker_figures
from kproc.broker.observe.broker_figures import ShownKeys
from tests.support.broker_figures_rig import Rig, Samples, reply


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(labels.items())]


IN, OUT = "kafka_server_brokertopicmetrics_messagesin_total", "kafka_server_brokertopicmetrics_bytesout_total"


def test_handler_counts_are_summed_and_continue_after_restart(rig: Rig) -> None:
    rig.create("t", 2)
    samples = rig.scrape(reply(1, traffic={"t": [10, 5, 7, 1]}), reply(1, traffic={"t": [1, 1, 0, 0]}))
    assert (of(samples, IN, topic="t"), of(samples, OUT, topic="t")) == (6, 7)
    samples = rig.scrape(reply(2, traffic={"t": [40, 20, 0, 0]}), reply(1, traffic={"t": [2, 2, 0, 0]}))
    assert of(samples, IN, topic="t") == 27, "5 of the dead one, 20 of its successor, 2"
    samples = rig.scrape(reply(2, traffic={"t": [41, 21, 0, 0]}), Lost())
    assert of(samples, IN, topic="t") == 28, "whoever is away keeps what it had counted"


def test_topic_made_anew_under_its_name_counts_no_backwards_step(rig: Rig) -> None:
    rig.create("t")
    rig.scrape(reply(traffic={"t": [10, 10, 0, 0]}), reply())
    samples = rig.scrape(reply(traffic={"t": [3, 3, 0, 0]}), reply())
    assert of(samples, IN, topic="t") == 13


def test_hung_handler_is_counted_and_polled_after_it_answered(rig: Rig) -> None:
    rig.create("t")
    rig.scrape(reply(traffic={"t": [1, 1, 0, 0]}), reply(traffic={"t": [2, 2, 0, 0]}))
    samples = rig.scrape(reply(traffic={"t": [5, 5, 0, 0]}))
    assert of(samples, "kproc_metrics_silent_handlers") == 1
    assert of(samples, IN, topic="t") == 7
    late = rig.asked[1]
    rig.asked.clear()
    rig.scrape(reply())
    assert 1 not in rig.asked, "its question of before is still open"
    late(reply(traffic={"t": [4, 4, 0, 0]}))
    samples = rig.scrape(reply(), reply(traffic={"t": [4, 4, 0, 0]}))
    assert of(samples, "kproc_metrics_silent_handlers") == 0


def test_lag_is_per_partition_and_topic_with_maximum_of_groups(rig: Rig) -> None:
    rig.figures.group_topics = ShownKeys(1)
    rig.create("t", 2)
    rig.open("t", 0, 50, 100)  # Group g2 has not read the records below 50, and they count.
    rig.ends["t", 1] = (0, 10)
    groups = [
        ['g"1', "classic", "Stable", 2, {"t": {0: 90, 1: 10}}],
        ["g2", "classic", "Empty", 0, {"t": {0: 1}, "gone": {0: 5}}],
    ]
    samples = rig.scrape(reply(groups=groups), reply())
    lag = {"consumergroup": 'g"1', "topic": "t"}
    assert of(samples, "kafka_consumergroup_lag_sum", **lag) == 10
    assert of(samples, "kafka_consumergroup_lag", **lag, partition="0") == 10
    assert of(samples, "kafka_consumergroup_lag", **lag, partition="1") == 0
    assert of(samples, "kafka_consumergroup_current_offset", **lag, partition="0") == 90
    assert of(samples, "kafka_consumergroup_members", consumergroup='g"1') == 2
    assert of(samples, "kproc_consumergroup_lag_largest") == 99
    assert of(samples, "kproc_metrics_left_out", of="group_topics") == 2
    manager = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    assert (of(samples, manager), of(samples, manager + "stable"), of(samples, manager + "empty")) == (
        2,
        1,
        1,
    )


def test_groups_are_counted_by_protocol_and_state(rig: Rig) -> None:
    coordinator = "kafka_server_group_coordinator_metrics_"
    classic = [["g1", "classic", "Stable", 2, {}]]
    samples = rig.scrape(reply(groups=classic), reply())
    assert not [name for name, _labels in samples if name.startswith(coordinator)], "no such group exists"
    samples = rig.scrape(
        reply(groups=[*classic, ["g2", "consumer", "Stable", 1, {}], ["g3", "streams", "NotReady", 1, {}]]),
        reply(more_groups={"consumer": {"Reconciling": 2}, "classic": {"Empty": 1}}),
    )
    manager = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    assert [of(samples, manager + state) for state in ("", "stable", "empty")] == [2, 1, 1]
    assert of(samples, coordinator + "group_count", protocol="consumer") == 3
    states = ("Assigning", "Reconciling", "Stable", "Empty", "Dead")
    counts = [of(samples, coordinator + "consumer_group_count", state=state) for state in states]
    assert counts == [0, 2, 1, 0, 0]
    assert of(samples, coordinator + "group_count", protocol="streams") == 1
    assert of(samples, coordinator + "streams_group_count", state="NotReady") == 1
    assert of(samples, "kproc_metrics_left_out", of="groups") == 3
    samples = rig.scrape(reply(groups=[["g3", "share", "Empty", 0, {}], ["g4", "share", "Stable", 2, {}]]), reply())
    assert of(samples, coordinator + "group_count", protocol="share") == 2
    counts = [of(samples, coordinator + "share_group_count", state=each) for each in ("Stable", "Empty", "Dead")]
    assert counts == [1, 1, 0]


def test_many_partitions_are_looked_up_in_slices(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[Path] = []

    def size(path: Path) -> int:
        looked_up.append(path)
        return 1

    monkeypatch.setattr(broker_figures, "log_bytes", size)
    rig.create("t", 200)
    rig.figures.gather(lambda: None)
    rig.figures.work()
    assert 0 < len(looked_up) < 200
    assert rig.figures.due_ms(rig.clock.now_ns()) == 0
    rig.scrape(reply(), reply())
    assert len(looked_up) == 200
    rig.scrape(reply(), reply())
    assert len(looked_up) == 200, "once"
