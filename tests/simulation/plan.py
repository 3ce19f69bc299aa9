"""Plan: everything of a run that is decided before it begins, so that parts of it can be left out.

Who the clients are, what the broker's settings are, and what happens when: each client and each event has numbers of
its own, so that a run without one of them is still the same run for the others, as far as their turns allow.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kproc.broker.cluster.features import TRANSACTION_VERSION
from tests.simulation.few_epochs import EPOCH_MAX
from tests.simulation.slow_senders import RECEIVE_TIMEOUT_MS

Settings = dict[str, str]
PROTOCOLS: Final = "listener.security.protocol.map"
# Everybody may do what no rule is about.
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
POWER: Final = 1.2  # How often the power goes, beside five deaths of roles.


@dataclass(frozen=True)
class Event:
    """Something that happens to the broker at a time after its first start."""

    at_ms: int
    kind: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_ms} ms: {self.kind} {' '.join(map(str, self.arguments))}".rstrip()


@dataclass(frozen=True)
class ClientPlan:
    """One client: what kind, and its own seed."""

    kind: str
    name: str
    seed: int


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    duration_ms: int
    handlers: int
    processors: int
    settings: Settings = field(default_factory=dict)
    clients: tuple[ClientPlan, ...] = ()
    events: tuple[Event, ...] = ()
    segment_bytes: int = 2000
    has_transactions: bool = False
    epoch_max: int = EPOCH_MAX  # Of producer ids.
    slice_rows: int = 0  # Of a divided request; 0: as many as in a broker.
    table_max: int = 0  # Entries of tables that clients fill; 0: as many as in a broker.
    has_jumps: bool = False  # The broker's time is moved.

    def without(self, part: ClientPlan | Event) -> Plan:
        """The same without one client or event."""
        return replace(
            self,
            clients=tuple(each for each in self.clients if each is not part),
            events=tuple(each for each in self.events if each is not part),
        )


_ROLES: Final = (
    "handler",
    "handler",
    "handler",
    "processor",
    "processor",
    "controller",
    "cleaner",
    "acceptor",
)
_PAUSES_MS: Final = (2, 10, 40, 100, 400, 2500)
_TRANSACTIONS_EVERY: Final = 4
_LATE_MARKERS: Final = 0.2
_RULES_EVERY: Final = 3
_LOGINS_EVERY: Final = 5
CONSUMERS_EVERY: Final = 3
SHARES_EVERY: Final = 3
STREAMS_EVERY: Final = 3
# "true" in the runs whose share group writes dead letters.
AUTO_CREATE: Final = "errors.deadletterqueue.auto.create.topics.enable"
# Events after which partitions or connections can have another Handler.
MOVING: Final = ("scale",)
# Every third plan divides requests of more than two rows: a topic and one of its partitions.
_SLICES_EVERY: Final = 3
_SLICE_ROWS: Final = 2
_TLS_EVERY: Final = 7
_CROWDS: Final = 0.2
_TABLE_MAX: Final = 6
_CALM: Final = (
    0.4  # Of the plans with TLS: nothing dies, so that nothing excuses an answer that does not come.
)
_DEADLY: Final = ("kill", "hang", "power", "restart", "fork")
_CRASHES_EVERY: Final = 11
_JUMPS_EVERY: Final = 13
_JUMPS_REST: Final = 8
_TOKENS: Final = 0.5  # Of the plans with jumps of time.
_ALWAYS_MS: Final = str((1 << 31) - 1)
# Events that set the time of the broker back, because it starts again.
_STARTING: Final = ("power", "restart")
_FAILING: Final = {"write", "sync"}  # Disk faults after which the broker starts again.
# Events after which something may expire late, or a session begins anew.
_LATE: Final = (*MOVING, *_DEADLY, "pause", "delay", "late", "disk", "listener")
# From one crash to the next while nobody uses the broker: a start, and the checkpoint's shortest interval of a second.
_IDLE_MS: Final = 1_400
_QUOTAS: Final = 0.2
_SLOW_SENDERS: Final = 0.3
# No throttle of these is as long as a client's patience. 0: no quota any more.
_QUOTA_RATES: Final = {
    "producer_byte_rate": (50_000, 500_000, 0),
    "consumer_byte_rate": (50_000, 500_000, 0),
    "request_percentage": (1, 10, 0),
    "controller_mutation_rate": (1, 10, 0),
}


def plan_of(
    seed: int,
    *,
    power: float = POWER,
    transactions: bool | None = None,
    tls: bool | None = None,
    crashes: bool | None = None,
    shares: bool | None = None,
    jumps: bool | None = None,
    late_markers: float = _LATE_MARKERS,
) -> Plan:
    """The plan of a seed; every fourth is of transactions, too, unless it is said whether, and a share of these about
    markers that come late; every third of rules, every fifth of logins, every seventh of TLS, unless it is said. Every
    eleventh is about crashes in a row, and nothing else."""
    if seed % _CRASHES_EVERY == 0 and not (transactions or tls or jumps) if crashes is None else crashes:
        return _with_crashes(_plan_of(seed, power))
    plan = _plan_without_tls(
        seed, power, transactions=transactions, shares=shares, late_markers=late_markers
    )
    if seed % _JUMPS_EVERY == _JUMPS_REST if jumps is None else jumps:
        return with_jumps(plan)
    plan = _with_slow_senders(plan)
    if seed % _SLICES_EVERY == 1:
        plan = replace(plan, slice_rows=_SLICE_ROWS)
    if random.Random(f"crowds {seed}").random() < _CROWDS:
        plan = with_crowds(plan)
    return _with_tls(plan) if (seed % _TLS_EVERY == 0 if tls is None else tls) else plan


def _plan_without_tls(
    seed: int, power: float, *, transactions: bool | None, shares: bool | None, late_markers: float
) -> Plan:
    plan = _plan_of(seed, power)
    if seed % _RULES_EVERY == 0:
        plan = _with_rules(plan)
    if seed % _LOGINS_EVERY == 0:
        plan = _with_logins(plan)
    if seed % CONSUMERS_EVERY == 0:
        plan = _with_consumers(plan)
    if seed % SHARES_EVERY == 1 if shares is None else shares:
        plan = _with_shares(plan)
    if seed % STREAMS_EVERY == 2:
        plan = _with_streams(plan)
    if seed % _TRANSACTIONS_EVERY == 0 if transactions is None else transactions:
        return _with_transactions(plan, power, late_markers)
    return plan


def _plan_of(seed: int, power: float) -> Plan:
    rng = random.Random(f"plan {seed}")
    duration_ms = rng.choice((80, 150, 300))
    clients = [
        ClientPlan("admin", "admin", rng.getrandbits(30)),
        ClientPlan("operator", "operator", rng.getrandbits(30)),
    ]
    for kind, counts in (
        ("producer-1", (0, 1)),
        ("producer-all", (0, 1, 2)),
        ("idempotent", (1, 1, 2)),
        ("idempotent-1", (0, 0, 1)),
        ("consumer", (1, 2)),
        ("mixer", (0, 1)),
        ("committer", (0, 1, 1)),
        ("member", (0, 0, 2, 3)),
    ):
        clients += [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n in range(rng.choice(counts))]
    settings = {
        "kproc.flush": rng.choice(("group", "group", "group", "none")),
        "log.index.interval.bytes": "0",
        "log.retention.check.interval.ms": rng.choice(("200", "1000")),
        "log.segment.delete.delay.ms": rng.choice(("0", "100", "60000")),
        "log.cleaner.backoff.ms": "50",
        "log.cleaner.dedupe.buffer.size": str(1 << 20),
        "log.flush.offset.checkpoint.interval.ms": rng.choice(("100", "1000", "60000")),
        "offsets.topic.num.partitions": "2",
        "group.initial.rebalance.delay.ms": rng.choice(("0", "50")),
        "group.min.session.timeout.ms": "100",
        "socket.request.max.bytes": str(1 << 20),
        "kproc.ring.bytes": str(1 << 20),
        "kproc.hung.kill": rng.choice(("false", "false", "true")),
        "num.recovery.threads.per.data.dir": "1",
    }
    events = [_event(rng, duration_ms, power) for _ in range(rng.choice((0, 2, 4, 8, 12)))]
    if rng.random() < 0.15:
        events += _moves(rng, duration_ms)
    events += _quotas(seed, duration_ms)
    return Plan(
        seed=seed,
        duration_ms=duration_ms,
        handlers=rng.choice((1, 2, 2, 3)),
        processors=rng.choice((1, 2)),
        settings=settings,
        clients=tuple(clients),
        events=tuple(sorted(events, key=lambda each: each.at_ms)),
        segment_bytes=rng.choice((600, 1500, 5000, 1 << 20)),
    )


def _with_crashes(plan: Plan) -> Plan:
    """One to three power losses in a row, soon after a topic was created again. Nobody touches the broker in between,
    long enough for the cleaner to write its checkpoints. The host's clock is set meanwhile, by up to a day."""
    rng = random.Random(f"crashes {plan.seed}")
    kinds = ["producer-all"] * 2 + ["idempotent"] * rng.choice((1, 2)) + ["consumer"]
    clients = [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n, kind in enumerate(kinds)]
    events: list[Event] = []
    at_ms = 50
    for _ in range(rng.choice((1, 2, 3))):
        at_ms += rng.choice((50, 100, 200))
        events.append(Event(at_ms, "recreate"))
        at_ms += rng.choice((30, 60, 120))
        powers = rng.choice((1, 2, 3))
        idle_ms = powers * _IDLE_MS
        events.append(Event(at_ms, "idle", (idle_ms,)))
        for number in range(powers):
            if rng.random() < 0.5:
                events.append(Event(at_ms + 1, "clock", (rng.randint(-86_400_000, 86_400_000),)))
            events.append(Event(at_ms + 5, rng.choice(("power", "power", "restart")), (number,)))
            at_ms += _IDLE_MS
    settings = {
        **plan.settings,
        "kproc.flush": "group",
        "log.flush.offset.checkpoint.interval.ms": "1000",
        # A record that is dated before the clock is set back may come afterwards: that is no mistake of the broker's.
        "log.message.timestamp.after.max.ms": str(2 * 86_400_000),
    }
    return replace(
        plan,
        duration_ms=at_ms + 200,
        settings=settings,
        clients=(*(each for each in plan.clients if each.kind in ("admin", "operator")), *clients),
        events=tuple(events),
    )


def with_jumps(plan: Plan, *, is_calm: bool | None = None) -> Plan:
    """Somebody moves the broker's time. In half of the plans, or if said so, no role is late for it.

    Offsets, ids of producers and records of other topics never expire, so that nothing of them may be missing.
    """
    rng = random.Random(f"jumps {plan.seed}")
    is_calm = rng.random() < 0.5 if is_calm is None else is_calm
    if rng.random() < _TOKENS:
        plan = _with_logins(plan)
    settings = {
        "kproc.time.movable": "true",
        "delegation.token.secret.key": "a secret of this plan",
        "log.retention.ms": "-1",
        "offsets.retention.minutes": _ALWAYS_MS,
        "producer.id.expiration.ms": _ALWAYS_MS,
        "transactional.id.expiration.ms": _ALWAYS_MS,
    }
    if is_calm:  # What is due would be found late without the message that time was moved.
        settings["log.retention.check.interval.ms"] = "3600000"
        settings["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = "3600000"
    left_out = _LATE if is_calm else _STARTING
    # Nobody else waits for what comes late now.
    silent = ("share-member", "silent-old", "silent-new") if is_calm else ("share-member",)
    jumper = ClientPlan("jumper-calm" if is_calm else "jumper", "jumper", rng.getrandbits(30))
    return replace(
        plan,
        settings={**plan.settings, **settings},
        clients=(*(each for each in plan.clients if each.kind not in silent), jumper),
        events=tuple(
            each for each in plan.events if each.kind not in left_out and not _FAILING & set(each.arguments)
        ),
        has_transactions=True,
        has_jumps=True,
    )


def _with_rules(plan: Plan) -> Plan:
    """An authorizer, and somebody who changes its rules."""
    ruler = ClientPlan("ruler", "ruler", random.Random(f"rules {plan.seed}").getrandbits(30))
    return replace(plan, settings={**plan.settings, **AUTHORIZER}, clients=(*plan.clients, ruler))


def _with_consumers(plan: Plan) -> Plan:
    """Members of a consumer group, whose protocol is another one than that of the other members (KIP-848)."""
    rng = random.Random(f"consumers {plan.seed}")
    kind = "group-member"
    members = [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n in range(rng.choice((2, 3)))]
    settings = {"group.consumer.assignment.interval.ms": rng.choice(("0", "0", "20"))}
    return replace(plan, settings={**plan.settings, **settings}, clients=(*plan.clients, *members))


def _with_shares(plan: Plan) -> Plan:
    """Members of a share group (KIP-932)."""
    rng = random.Random(f"shares {plan.seed}")
    kind = "share-member"
    members = [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n in range(rng.choice((2, 3)))]
    settings = {"share.coordinator.state.topic.num.partitions": "2", AUTO_CREATE: rng.choice(("false", "true"))}
    segment_bytes = plan.segment_bytes
    if settings[AUTO_CREATE] == "true":
        # A batch of dead letters that does not fit into a segment is lost, in Kafka too. Real segments have 1 MiB.
        segment_bytes = max(segment_bytes, 1 << 17)
    return replace(
        plan,
        settings={**plan.settings, **settings},
        clients=(*plan.clients, *members),
        segment_bytes=segment_bytes,
    )


def _with_streams(plan: Plan) -> Plan:
    """Members of a streams group (KIP-1071). Its sessions are short, so that members that died are removed."""
    rng = random.Random(f"streams {plan.seed}")
    kind = "streams-member"
    members = [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n in range(rng.choice((2, 3)))]
    settings = {
        "group.streams.session.timeout.ms": "2000",
        "group.streams.min.session.timeout.ms": "2000",
        "group.streams.heartbeat.interval.ms": "500",
        "group.streams.min.heartbeat.interval.ms": "500",
        "group.streams.assignment.interval.ms": rng.choice(("0", "0", "20")),
        "group.streams.initial.rebalance.delay.ms": rng.choice(("0", "0", "50")),
        "group.streams.num.standby.replicas": rng.choice(("0", "0", "1")),
    }
    return replace(plan, settings={**plan.settings, **settings}, clients=(*plan.clients, *members))


def _with_logins(plan: Plan) -> Plan:
    """Clients log in, as nobody in particular: rules are about ANONYMOUS. Sessions may end."""
    rng = random.Random(f"logins {plan.seed}")
    settings = {
        PROTOCOLS: f"PLAINTEXT:{protocol_of(has_logins=True)},MORE:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": 'PlainLoginModule required user_ANONYMOUS="word";',
        "connections.max.reauth.ms": rng.choice(("0", "40", "200")),
    }
    return replace(plan, settings={**plan.settings, **settings})


def _with_slow_senders(plan: Plan) -> Plan:
    """Clients that never end a request, in some plans. Of its own source, so that other plans stay what they were."""
    rng = random.Random(f"slow senders {plan.seed}")
    if rng.random() >= _SLOW_SENDERS:
        return plan
    clients = [
        ClientPlan("slow-sender", f"slow-sender-{n}", rng.getrandbits(30)) for n in range(rng.choice((1, 2, 5)))
    ]
    settings = {"kproc.request.receive.timeout.ms": str(RECEIVE_TIMEOUT_MS)}
    return replace(plan, settings={**plan.settings, **settings}, clients=(*plan.clients, *clients))


def with_crowds(plan: Plan) -> Plan:
    """Clients that make up names of groups fill small tables. Of its own source, as slow senders are."""
    rng = random.Random(f"crowd {plan.seed}")
    clients = [ClientPlan("crowd", f"crowd-{n}", rng.getrandbits(30)) for n in range(rng.choice((1, 2)))]
    return replace(plan, table_max=_TABLE_MAX, clients=(*plan.clients, *clients))


def protocol_of(*, has_tls: bool = False, has_logins: bool = False) -> str:
    """Of the listener that is always there."""
    return ("SASL_" if has_logins else "") + ("SSL" if has_tls else "PLAINTEXT")


def _with_tls(plan: Plan) -> Plan:
    """Clients speak TLS. Strangers shake hands wrongly, haulers have large answers; there are more Processors, which
    come and go, die and pause in handshakes; certificates change. The few bounds are such that they are met."""
    rng = random.Random(f"tls {plan.seed}")
    has_logins = "SASL_PLAINTEXT" in plan.settings.get(PROTOCOLS, "")
    settings = {
        PROTOCOLS: f"PLAINTEXT:{protocol_of(has_tls=True, has_logins=has_logins)},MORE:PLAINTEXT",
        "kproc.tls.handshake.timeout.ms": rng.choice(("300", "1000", "3000")),
        "kproc.tls.handshakes.max": rng.choice(("2", "4", "256")),
    }
    kinds = ["stranger"] * rng.choice((1, 2)) + ["hauler"] * rng.choice((0, 1, 1))
    clients = [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n, kind in enumerate(kinds)]
    is_calm = rng.random() < _CALM
    events = [each for each in plan.events if not (is_calm and each.kind in _DEADLY)]
    for _ in range(rng.choice((1, 2, 4))):
        at_ms = rng.randrange(plan.duration_ms)
        kind = rng.choice(
            ("certificate", "scale", "scale") if is_calm else ("certificate", "scale", "shaking")
        )
        arguments: tuple[Any, ...] = rng.randrange(4), rng.choice(("fits", "fits", "does not fit"))
        if kind == "scale":
            arguments = "num.network.threads", rng.choice((1, 2, 3))
        elif kind == "shaking":
            arguments = rng.choice(("kill", "pause", "hang")), rng.choice(_PAUSES_MS)
        events.append(Event(at_ms, kind, arguments))
    return replace(
        plan,
        settings={**plan.settings, **settings},
        processors=rng.choice((1, 2, 3)),
        clients=(*plan.clients, *clients),
        events=tuple(sorted(events, key=lambda each: each.at_ms)),
        segment_bytes=rng.choice((1 << 17, 1 << 20)),
    )


def _with_transactions(plan: Plan, power: float, late_markers: float) -> Plan:
    """Few of the other clients, some transactional ones, more of those faults that their rules are about."""
    rng = random.Random(f"transactions {plan.seed}")
    others = [
        each for each in plan.clients if each.kind in ("admin", "operator", "ruler") or rng.random() < 0.3
    ]
    clients = [replace(each, kind="admin-txn") if each.kind == "admin" else each for each in others]
    for kind, counts in (
        ("transactional-old", (0, 1, 2)),
        ("transactional-new", (1, 1, 2)),
        ("rival-old", (0, 0, 2)),
        ("rival-new", (0, 0, 2)),
        ("silent-old", (0, 0, 1)),
        ("silent-new", (0, 1)),
        ("copier-old", (0, 1)),
        ("copier-new", (0, 1)),
        ("committed", (1, 2)),
    ):
        clients += [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n in range(rng.choice(counts))]
    duration_ms = rng.choice((150, 300, 600))
    if rng.random() < late_markers:
        return _with_late_markers(plan, clients[:2], rng)
    events = [*plan.events]
    if rng.random() < 0.2:
        failing = rng.choice(("write", "sync")), 300, rng.randrange(1, 20)
        events.append(Event(rng.randrange(duration_ms), "disk", failing))
    events += [_event_of_transactions(rng, duration_ms, power) for _ in range(rng.choice((0, 2, 4, 8)))]
    if rng.random() < 0.3:
        events += _late_markers(rng, duration_ms)
    settings = {
        **plan.settings,
        "transaction.state.log.num.partitions": rng.choice(("1", "3")),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": rng.choice(("20", "100")),
    }
    if any(each.kind == "power" for each in events):
        settings["kproc.flush"] = "group"  # Without it a power loss may tear transactions.
    epoch_max = rng.choice((2, 3, 5, 9)) if rng.random() < 0.4 else EPOCH_MAX
    if rng.random() < 0.3:
        events += [
            Event(rng.randrange(duration_ms), "feature", (TRANSACTION_VERSION, rng.choice((0, 1, 2))))
            for _ in range(rng.choice((1, 2, 4)))
        ]
    return replace(
        plan,
        duration_ms=duration_ms,
        settings=settings,
        clients=tuple(clients),
        events=tuple(sorted(events, key=lambda each: each.at_ms)),
        has_transactions=True,
        epoch_max=epoch_max,
    )


def _with_late_markers(plan: Plan, others: list[ClientPlan], rng: random.Random) -> Plan:
    """Producers without an epoch for each transaction, whose next one a late marker of the last could end."""
    kinds = ("transactional-old",) * 4 + ("committed",) * 2
    clients = [ClientPlan(kind, f"{kind}-{n}", rng.getrandbits(30)) for n, kind in enumerate(kinds)]
    events = [event for _ in range(4) for event in _late_markers(rng, 600)]
    return replace(
        plan,
        duration_ms=600,
        handlers=3,
        clients=(*others, *clients),
        events=tuple(sorted(events, key=lambda each: each.at_ms)),
        has_transactions=True,
    )


def _event_of_transactions(rng: random.Random, duration_ms: int, power: float) -> Event:
    at_ms = rng.randrange(duration_ms)
    kind = rng.choices(("kill", "delay", "scale", "power"), (5, 3, 3, power))[0]
    number = rng.randrange(1000)
    if kind == "kill":
        return Event(at_ms, kind, (rng.choice(("handler", "handler", "handler", "controller")), number))
    if kind == "delay":
        return Event(at_ms, kind, ("handler", number, rng.randrange(1000), rng.choice(_PAUSES_MS)))
    if kind == "scale":
        return Event(at_ms, kind, ("num.io.threads", rng.choice((1, 2, 3))))
    return Event(at_ms, kind, (number,))


def _late_markers(rng: random.Random, duration_ms: int) -> list[Event]:
    """Coordinators move on while what they sent to another Handler is on its way."""
    at_ms = rng.randrange(duration_ms // 2)
    links = [
        Event(at_ms, "late", (rng.randrange(1000), rng.randrange(1000), rng.choice((40, 100, 200))))
        for _ in range(rng.choice((1, 2)))
    ]
    counts = rng.choice(((2, 3), (3, 2), (3, 2, 3)))
    at_ms += rng.randrange(5, 30)
    return links + [
        Event(at_ms + 25 * n, "scale", ("num.io.threads", count)) for n, count in enumerate(counts)
    ]


def _moves(rng: random.Random, duration_ms: int) -> list[Event]:
    """Partitions move on before they have arrived: counts change at once again, links between Handlers are late."""
    at_ms = rng.randrange(duration_ms)
    late = [
        Event(at_ms, "delay", ("handler", rng.randrange(1000), rng.randrange(1000), rng.choice((40, 100))))
        for _ in range(3)
    ]
    counts = [
        Event(at_ms + 8 * n, "scale", ("num.io.threads", count)) for n, count in enumerate((1, 3, 2, 3))
    ]
    return late + counts


def _quotas(seed: int, duration_ms: int) -> list[Event]:
    """Quotas of all clients are set and removed. Of its own source, so that other plans stay what they were."""
    rng = random.Random(f"quotas {seed}")
    if rng.random() >= _QUOTAS:
        return []
    keys = [rng.choice(list(_QUOTA_RATES)) for _ in range(rng.choice((1, 2, 4)))]
    return [Event(rng.randrange(duration_ms), "quota", (key, rng.choice(_QUOTA_RATES[key]))) for key in keys]


def _event(rng: random.Random, duration_ms: int, power: float) -> Event:
    at_ms = rng.randrange(duration_ms)
    kind = rng.choices(
        ("kill", "pause", "hang", "delay", "scale", "power", "disk", "restart", "listener", "fork"),
        (6, 6, 2, 6, 5, power, 2, 0.5, 0.7, 0.5),
    )[0]
    number = rng.randrange(1000)
    if kind == "kill":
        return Event(at_ms, kind, (rng.choice(_ROLES), number))
    if kind in ("pause", "hang"):
        return Event(at_ms, kind, (rng.choice(_ROLES), number, rng.choice(_PAUSES_MS)))
    if kind == "delay":
        return Event(at_ms, kind, (rng.choice(_ROLES), number, rng.randrange(1000), rng.choice(_PAUSES_MS)))
    if kind == "scale":
        return Event(
            at_ms, kind, (rng.choice(("num.io.threads", "num.network.threads")), rng.choice((1, 2, 3)))
        )
    if kind == "disk":
        what = rng.choice(("full", "full", "short", "slow", "slow", "write", "sync"))
        return Event(at_ms, kind, (what, rng.choice((20, 100, 300)), rng.randrange(1, 20)))
    if kind == "power":
        return Event(at_ms, kind, (number,))
    if kind == "fork":
        return Event(at_ms, kind, (rng.choice((1, 2, 4)),))
    return Event(at_ms, kind, ())
