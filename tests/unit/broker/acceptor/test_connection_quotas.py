"""ConnectionQuotas against Kafka's ConnectionQuotasTest, idea by idea, on a manual clock.

Listeners as there: EXTERNAL 0, ADMIN 1, REPLICATION 2 (inter-broker, so protected); two samples of a second. A call of
Kafka's `inc` that would block is here an `admit` that says no.
"""

from __future__ import annotations

import pytest

from kproc.broker.acceptor.connection_limits import UNLIMITED, limits_for, parse_overrides
from kproc.broker.acceptor.connection_quotas import TOO_MANY
from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.role.handoff import pack_address
from tests.support.connection_quotas_rig import ADMIN, EXTERNAL, ONE, REPLICATION, THREE, TWO, Rig, S


def waits(rig: Rig) -> int:
    return sum(each.throttled_count for each in rig.quotas)


# -- counts --------------------------------------------------------------------------------------------------


def test_no_connection_limits_by_default() -> None:
    rig = Rig()
    for listener in range(3):
        assert [rig.enter(listener) for _ in range(10_000)] == [0] * 10_000
    assert rig.counts.total == 30_000
    now_ns = rig.clock.now_ns()
    assert rig.quotas[EXTERNAL].listener_rate(now_ns) == 10_000
    for listener in range(3):
        for _ in range(10_000):
            rig.leave(listener)
    assert rig.counts.total == 0
    assert waits(rig) == 0


def test_max_connections_per_ip() -> None:
    """Differs from Kafka: one over the limit is not counted until it is closed. It is closed at once anyway."""
    rig = Rig(address_max=5)
    assert [rig.enter(EXTERNAL) for _ in range(6)] == [0] * 5 + [TOO_MANY]
    assert rig.enter(ADMIN) == TOO_MANY, "over all listeners"
    assert rig.enter(EXTERNAL, TWO) == 0
    assert rig.counts.of_address(ONE) == 5
    rig.leave(EXTERNAL)
    assert rig.enter(ADMIN) == 0


def test_max_connections_per_ip_overrides() -> None:
    rig = Rig(address_max=0, address_max_overrides={ONE: 2, TWO: 0})
    assert [rig.enter(EXTERNAL, ONE) for _ in range(3)] == [0, 0, TOO_MANY]
    assert rig.enter(EXTERNAL, TWO) == rig.enter(EXTERNAL, THREE) == TOO_MANY


def test_max_broker_wide_connection_limit() -> None:
    rig = Rig(broker_max=10)
    assert [rig.enter(EXTERNAL) for _ in range(10)] == [0] * 10, "one listener may take all"
    assert rig.evictions() == 0, "full is not exceeded"
    assert rig.enter(ADMIN) is None
    assert rig.enter(EXTERNAL) is None
    rig.leave(EXTERNAL)
    assert rig.enter(ADMIN) == 0
    assert rig.enter(REPLICATION) == 0, "protected"
    assert rig.counts.total == 11
    assert rig.evictions() == 1
    rig.leave(EXTERNAL)
    assert rig.enter(EXTERNAL) is None, "at the limit, not below"
    rig.leave(EXTERNAL)
    assert rig.enter(EXTERNAL) == 0


def test_max_listener_connection_limits() -> None:
    rig = Rig(listener_max=5)
    for listener in range(3):
        assert [rig.enter(listener) for _ in range(5)] == [0] * 5
        assert rig.enter(listener) is None, "the protected one too"
    rig.leave(REPLICATION)
    assert rig.enter(REPLICATION) == 0
    assert rig.enter(EXTERNAL) is None


# -- eviction ------------------------------------------------------------------------------------------------


def test_every_acceptor_comes_to_its_own_share_of_what_must_go() -> None:
    rig = Rig(broker_max=100)
    for listener, count in ((EXTERNAL, 4), (ADMIN, 6), (REPLICATION, 10)):
        rig.counts.add("processor-0", ONE, listener, count)
    rig.apply(broker_max=12)
    assert [rig.evictions(listener) for listener in range(3)] == [2, 6, 0]


def test_eviction_is_requested_once_and_repeated_on_timeout() -> None:
    rig = Rig(broker_max=1)
    rig.counts.add("processor-0", ONE, EXTERNAL, 3)
    assert rig.evictions() == 2
    assert rig.evictions() == 0, "under way"
    rig.counts.add("processor-0", ONE, EXTERNAL, -1)
    assert rig.evictions() == 0
    rig.clock.advance_ms(1001)
    assert rig.evictions() == 1
    rig.counts.add("processor-0", ONE, EXTERNAL, -1)
    rig.counts.add("processor-0", ONE, REPLICATION, 1)
    assert rig.evictions() == 1, "the last was done, this is a new one"


def test_connections_that_move_are_not_taken_for_too_many() -> None:
    """Their new Processor's report may come before the old one's."""
    rig = Rig(broker_max=10)
    quotas = rig.quotas[EXTERNAL]
    rig.counts.add("old", ONE, EXTERNAL, 10)
    for _ in range(10):
        rig.counts.add("new", ONE, EXTERNAL, 1)
        assert quotas.evictions(rig.clock.now_ns()) == 0
        rig.clock.advance_ms(199)
        assert quotas.evictions(rig.clock.now_ns()) == 0
        rig.counts.add("old", ONE, EXTERNAL, -1)
        assert quotas.evictions(rig.clock.now_ns()) == 0


# -- rates of broker and listener ------------------------------------------------------------------------------


def test_broker_connection_rate_limit_when_actual_rate_is_below() -> None:
    rig = Rig(broker_rate=125)
    taken = rig.run(5, {(EXTERNAL, ONE): 40, (ADMIN, ONE): 40, (REPLICATION, ONE): 40})
    assert all(count in (199, 200) for count in taken.values())
    assert waits(rig) == 0


def test_broker_connection_rate_limit_when_actual_rate_is_above() -> None:
    rig = Rig(broker_rate=90)
    offered = {(EXTERNAL, ONE): 100.0, (ADMIN, ONE): 100.0, (REPLICATION, ONE): 100.0}
    rig.run(3, offered)  # What the empty window lets through.
    taken = rig.run(20, offered)
    assert taken[REPLICATION, ONE] == pytest.approx(2000, abs=2), "protected: not held up"
    public = taken[EXTERNAL, ONE] + taken[ADMIN, ONE]
    assert public / 20 == pytest.approx(90, rel=0.1)
    assert rig.quotas[REPLICATION].throttled_count == 0
    assert rig.quotas[EXTERNAL].throttled_ns > 0


def test_listener_rate_limit_with_actual_rate_below() -> None:
    rig = Rig(listener_rate=50)
    taken = rig.run(5, {(EXTERNAL, ONE): 40, (REPLICATION, ONE): 40})
    assert all(count in (199, 200) for count in taken.values())
    assert waits(rig) == 0


def test_listener_rate_limit_with_actual_rate_above() -> None:
    rig = Rig(listener_rate=30)
    offered = {(listener, ONE): 80.0 for listener in range(3)}
    rig.run(3, offered)
    for key, count in rig.run(20, offered).items():
        assert count / 20 == pytest.approx(30, rel=0.1), key
    assert all(each.throttled_ns > 0 for each in rig.quotas), "every listener, the protected one too"


def test_rate_delay_ends_after_a_sample_and_is_not_shortened() -> None:
    rig = Rig(listener_rate=1)
    assert rig.enter(EXTERNAL) == 0
    assert rig.enter(EXTERNAL) is None
    begun_ns, quotas = rig.clock.now_ns(), rig.quotas[EXTERNAL]
    assert 0 < quotas.ready_ns - begun_ns <= S, "at most quota.window.size.seconds"
    rig.apply(listener_rate=UNLIMITED)
    assert rig.enter(EXTERNAL) is None, "a wait that has begun is waited out"
    rig.clock.advance_ns(quotas.ready_ns - begun_ns)
    assert rig.enter(EXTERNAL) == 0
    assert quotas.ready_ns == 0


def test_client_that_went_away_before_accept_costs_no_rate() -> None:
    rig = Rig(broker_rate=100, listener_rate=100)
    quotas = rig.quotas[EXTERNAL]
    now_ns = rig.clock.now_ns()
    assert quotas.admit(now_ns)
    quotas.cancel_admission(now_ns)
    quotas.cancel_admission(now_ns)
    assert quotas.broker_rate(now_ns) == quotas.listener_rate(now_ns) == quotas.broker_events == 0


def test_max_listener_connection_rate_reconfiguration() -> None:
    rig = Rig(listener_rate=20)
    offered = {(EXTERNAL, ONE): 100.0}
    rig.run(3, offered)
    rig.apply(listener_rate=UNLIMITED)
    rig.run(2, offered)  # The queue of those who waited.
    assert rig.run(3, offered)[EXTERNAL, ONE] >= 299, "removed: nobody waits"
    rig.apply(listener_rate=10)
    rig.run(3, offered)
    assert rig.run(20, offered)[EXTERNAL, ONE] / 20 == pytest.approx(10, rel=0.1)


def test_max_broker_connection_rate_reconfiguration() -> None:
    rig = Rig()
    offered = {(EXTERNAL, ONE): 60.0, (ADMIN, ONE): 60.0}
    assert sum(rig.run(3, offered).values()) >= 358
    rig.apply(broker_rate=50)
    rig.run(3, offered)
    assert sum(rig.run(20, offered).values()) / 20 == pytest.approx(50, rel=0.1)


# -- rates of addresses ------------------------------------------------------------------------------------------


def test_ip_connection_rate_when_actual_rate_is_below() -> None:
    rig = Rig(address_rate_overrides={ONE: 60.0})
    taken = rig.run(5, {(EXTERNAL, ONE): 40, (EXTERNAL, TWO): 40})
    assert all(count in (199, 200) for count in taken.values())
    now_ns = rig.clock.now_ns()
    assert rig.quotas[EXTERNAL].address_rate(ONE, now_ns) == pytest.approx(40, rel=0.1)
    assert rig.quotas[EXTERNAL].address_rate(TWO, now_ns) == 0, "no limit, no sensor"
    assert waits(rig) == 0


def test_ip_connection_rate_when_actual_rate_is_above() -> None:
    rig = Rig(address_rate=20.0, address_rate_overrides={ONE: 10.0})
    offered = {(EXTERNAL, ONE): 50.0, (EXTERNAL, TWO): 50.0}
    rig.run(3, offered)
    taken = rig.run(20, offered)
    # Kafka's unrecorded rejections let one in as soon as the window has room: the limit, in bursts.
    assert taken[EXTERNAL, ONE] / 20 == pytest.approx(10, rel=0.15)
    assert taken[EXTERNAL, TWO] / 20 == pytest.approx(20, rel=0.15)
    assert waits(rig) == 0, "the Acceptor never waits for an address"
    assert rig.quotas[EXTERNAL].address_throttled_ns > 0
    assert rig.quotas[ADMIN].address_throttled_count == 0, "only where it happened"


def test_ip_connection_rate_with_listener_connection_rate() -> None:
    rig = Rig(listener_rate=15, address_rate=10.0)
    offered = {(EXTERNAL, ONE): 30.0, (EXTERNAL, TWO): 30.0}
    rig.run(3, offered)
    taken = rig.run(20, offered)
    assert sum(taken.values()) / 20 == pytest.approx(15, rel=0.1)
    assert all(count / 20 <= 11 for count in taken.values())


def test_rejected_ip_connection_is_unrecorded_from_all_rates() -> None:
    for listener in (EXTERNAL, REPLICATION):
        rig = Rig(address_rate=0.0)
        throttle_ns = rig.enter(listener)
        assert throttle_ns == S, "limit 0: by the cap"
        now_ns, quotas = rig.clock.now_ns(), rig.quotas[listener]
        assert quotas.address_rate(ONE, now_ns) == quotas.listener_rate(now_ns) == 0
        assert quotas.broker_rate(now_ns) == quotas.broker_events == 0
        assert rig.counts.total == 0


def test_enforced_ip_connection_rate_quota_update() -> None:
    rig = Rig(address_rate_overrides={ONE: 0.0})
    assert rig.enter(EXTERNAL, ONE) == S
    rig.apply(address_rate_overrides={ONE: 100.0})
    assert rig.enter(EXTERNAL, ONE) == 0, "raised"
    rig.apply(address_rate_overrides={}, address_rate=0.0)
    assert rig.enter(EXTERNAL, ONE) == S, "removed: the default holds"
    rig.apply(address_rate=UNLIMITED)
    assert rig.enter(EXTERNAL, ONE) == 0


def test_ip_rates_are_forgotten_with_their_window() -> None:
    """Kafka keeps them for an hour, in which somebody with many addresses could fill the memory."""
    rig = Rig(address_rate=100.0)
    rig.enter(EXTERNAL, ONE)
    rig.clock.advance_ms(999)
    rig.enter(EXTERNAL, TWO)
    assert rig.quotas[EXTERNAL]._address_rates.keys() == {ONE, TWO}
    rig.clock.advance_ms(1_001)
    rig.enter(EXTERNAL, TWO)
    assert rig.quotas[EXTERNAL]._address_rates.keys() == {TWO}


def test_a_processor_that_never_says_what_it_has_shuts_no_port() -> None:
    rig = Rig(broker_max=10)
    rig.counts.expect("stopped")
    assert rig.enter(EXTERNAL) is None
    rig.clock.advance_ms(3_000)
    assert rig.enter(EXTERNAL) == 0
    assert rig.enter(EXTERNAL) == 0, "nor is it waited for again"
    rig.counts.heard("stopped")
    rig.enter(EXTERNAL)
    rig.counts.expect("another")
    assert rig.enter(EXTERNAL) is None


def test_count_limit_and_rate_limit_together() -> None:
    rig = Rig(listener_rate=30, broker_max=200)
    offered = {(EXTERNAL, ONE): 60.0}
    assert rig.run(10, offered)[EXTERNAL, ONE] == 200, "the count stops what the rate let in"
    for _ in range(100):
        rig.leave(EXTERNAL)
    assert rig.run(2, offered)[EXTERNAL, ONE] <= 100
    assert rig.counts.total <= 200


# -- where the limits come from ----------------------------------------------------------------------------------


def names(host: str) -> list[str]:
    if host == "nowhere.example":
        raise OSError("unknown")
    return {"both.example": ["10.0.0.7", "fd00::7"]}.get(host, [host])


def test_plain_key_is_the_brokers_and_every_listeners_limit() -> None:
    config = Config.build({"max.connections": "50", "max.connection.creation.rate": "7"})
    limits = limits_for("PLAINTEXT", config, DynamicSettings())
    assert (limits.broker_max, limits.listener_max) == (50, 50)
    assert (limits.broker_rate, limits.listener_rate) == (7, 7)


def test_dynamic_beats_static_and_prefixed_beats_plain() -> None:
    config = Config.build({"max.connections": "50", "listener.name.plaintext.max.connections": "20"})
    assert limits_for("PLAINTEXT", config, DynamicSettings()).listener_max == 20
    settings = DynamicSettings({"max.connections": "60"})
    limits = limits_for("PLAINTEXT", config, settings)
    assert (limits.broker_max, limits.listener_max) == (60, 20), (
        "Kafka: a prefixed static value beats a plain one"
    )
    settings = DynamicSettings({"max.connections": "60", "listener.name.plaintext.max.connections": "9"})
    limits = limits_for("PLAINTEXT", config, settings)
    assert (limits.broker_max, limits.listener_max) == (60, 9)


def test_ip_rates_come_by_address_and_default() -> None:
    settings = DynamicSettings({}, {"": 8.0, "10.0.0.1": 2.0, "fd00::1": 3.0})
    limits = limits_for("PLAINTEXT", Config.build(), settings)
    assert limits.rate_of(pack_address("10.0.0.1")) == 2
    assert limits.rate_of(pack_address("fd00::1")) == 3
    assert limits.rate_of(pack_address("10.0.0.2")) == 8


def test_overrides_name_addresses_and_hosts(caplog: pytest.LogCaptureFixture) -> None:
    found = parse_overrides("both.example:5, 10.0.0.9:0,[fd00::9]:3, nowhere.example:1", names)
    assert found == {
        pack_address("10.0.0.7"): 5,
        pack_address("fd00::7"): 5,
        pack_address("10.0.0.9"): 0,
        pack_address("fd00::9"): 3,
    }
    assert "cannot resolve nowhere.example" in caplog.text


def test_local_host_is_both_of_its_addresses() -> None:
    config = Config.build({"max.connections.per.ip.overrides": "localhost:4"})
    limits = limits_for("PLAINTEXT", config, DynamicSettings())
    assert limits.max_of(pack_address("127.0.0.1")) == 4
    assert limits.has_counts
