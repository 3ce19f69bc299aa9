"""build_role: builds every role of a broker from the BrokerPlan, which all roles share, and the role's own RoleParts.

RoleParts are the parts that differ between the ways to run roles: how a role sleeps, its shared memory, and the thread
that runs fdatasync. child.py fills them from descriptors that the supervisor sends, inprocess_roles.py from memory of
its own process. This file does not know which of the two calls it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kproc.broker.acceptor.acceptor import Acceptor
from kproc.broker.acceptor.connection_limits import ConnectionLimits, Resolve, control_limits, limits_for
from kproc.broker.cleaner.cleaner import Cleaner
from kproc.broker.cluster.controller import ControllerState, do_at_once
from kproc.broker.cluster.dynamic_settings import left_out, processors_in_force, settings_in_force
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.cluster.role_counts import IO_THREADS
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.config.sasl_settings import listeners_without_users
from kproc.broker.controller.controller import Controller
from kproc.broker.controller.operations import AskSupervisor, Operations
from kproc.broker.handler.checkpoint import Checkpoint
from kproc.broker.handler.handler import Handler, MovableHandler
from kproc.broker.handler.partitions import Partitions
from kproc.broker.handler.syncer import Syncer
from kproc.broker.metrics.slab import MetricsRow
from kproc.broker.observe import fault_watch, health
from kproc.broker.observe.broker_figures import BrokerFigures
from kproc.broker.observe.figures_text import figures_text
from kproc.broker.observe.known_ends import KnownEnds
from kproc.broker.observe.metrics_http import MetricsResponder, Scrapes
from kproc.broker.observe.prometheus import Exposition, load_prometheus
from kproc.broker.observe.status import Status
from kproc.broker.processor.connection_table import ConnectionTable
from kproc.broker.processor.pending_login import LoginLimits
from kproc.broker.processor.processor import Processor
from kproc.broker.processor.processor_state import ProcessorState
from kproc.broker.processor.tls_listeners import TlsListeners
from kproc.broker.request.routing import ProduceRouter
from kproc.broker.role.partition_table import PartitionTable
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.purgatory import Purgatory
from kproc.broker.role.roles import (
    ACCEPTOR,
    ACCEPTOR_COUNT_MAX,
    CLEANER,
    CONTROLLER,
    HANDLER,
    PROCESSOR,
    acceptor_id,
    is_control,
    slab_row,
)
from kproc.broker.security.authorizer import locks_everybody_out
from kproc.broker.storage import checkpoints
from kproc.broker.storage.counting_fs import counting
from kproc.broker.storage.fs import Fs
from kproc.broker.supervisor import broker_time, tls_check
from kproc.broker.transport.agent import Agent, AgentId, BlockOwner
from kproc.common.clock import NS_PER_MS, NS_PER_S, Clock

if TYPE_CHECKING:
    from kproc.broker.ipc.wait import Sleeper
    from kproc.broker.processor.tls_connections import TlsConnections

logger = logging.getLogger(__name__)


class SupervisorCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's access to the supervisor, or to InProcessBroker if all roles share one process."""

    send_request: AskSupervisor
    send_settings: Callable[[DynamicSettings], None]
    # The number of Handlers. None at the broker's start: the controller then computes the number from the settings.
    handler_count: int | None = None


class RoleParts(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a role that differ between processes, threads and inline roles.

    A part that is None by default is set only for the roles that need it.
    """

    doze: Sleeper
    metrics: MetricsRow
    is_restart: bool = False
    # Set for Handlers, the cleaner, and a controller with a metrics listener.
    table: PartitionTable | None = None
    # Set for Acceptors: the socket to accept from. For the controller: the socket of the metrics listener, if
    # configured.
    listening: socket.socket | None = None
    arena: BlockOwner | None = None  # Of Processors.
    syncer: Syncer | None = None  # Of Handlers.
    supervisor: SupervisorCalls | None = None  # Of the controller.


def build_role(agent: AgentId, plan: BrokerPlan, parts: RoleParts) -> Agent:
    """Create the object of one role. Its links to other roles are attached later.

    Raises FatalError if the host lacks a resource or the data belong to another cluster, and Corrupt or StorageFailure
    if the metadata log cannot be used.
    """
    builders: dict[str, Callable[[AgentId, BrokerPlan, RoleParts], Agent]] = {
        ACCEPTOR: build_acceptor,
        PROCESSOR: build_processor,
        HANDLER: build_handler,
        CONTROLLER.role: build_controller,
        CLEANER.role: build_cleaner,
    }
    return builders[agent.role](agent, plan, parts)


def build_acceptor(agent: AgentId, plan: BrokerPlan, parts: RoleParts) -> Acceptor:
    """Build the Acceptor of one listener."""
    assert parts.listening is not None
    config, metrics = plan.config, parts.metrics
    others = [slab_row(acceptor_id(n)) for n in range(ACCEPTOR_COUNT_MAX) if n != agent.index]
    return Acceptor(
        agent,
        # The control listener is not in the list of listeners, so pass index 0. Its connections have their own limits
        # and counts.
        listener_index=0 if is_control(agent) else agent.index,
        listening=parts.listening,
        doze=parts.doze,
        metrics=metrics,
        clock=plan.clock,
        send_buffer_bytes=config.socket_send_buffer_bytes,
        protocol="PLAINTEXT" if is_control(agent) else plan.endpoints[agent.index].protocol,
        limits_for=lambda settings, resolve: _connection_limits(plan, agent, settings, resolve),
        rate_samples=config.quota_window_num,
        rate_sample_ns=config.quota_window_size_seconds * NS_PER_S,
        rate_events_elsewhere=lambda: metrics.sum_elsewhere("connection_rate_events", others),
    )


def _connection_limits(
    plan: BrokerPlan, acceptor: AgentId, settings: DynamicSettings, resolve: Resolve
) -> ConnectionLimits:
    """Return the connection limits of an Acceptor's listener.

    As in Kafka, the inter-broker listener is protected from the broker-wide limit unless it is the only listener. The
    control listener has limits of its own.
    """
    if is_control(acceptor):
        return control_limits(plan.config, settings)
    names = [endpoint.name for endpoint in plan.endpoints]
    dynamic = settings.text("listeners")
    count = len([each for each in (names if dynamic is None else dynamic.split(",")) if each.strip()])
    # As in ConnectionQuotas (KIP-402), the inter-broker listener may exceed max.connections if there is another
    # listener.
    inter_broker = {at for at, name in enumerate(names) if name == plan.config.inter_broker_listener}
    protected = frozenset(inter_broker) if count > 1 else frozenset[int]()
    return limits_for(names[acceptor.index], plan.config, settings, protected=protected, resolve=resolve)


def build_processor(agent: AgentId, plan: BrokerPlan, parts: RoleParts) -> Processor:
    """Build one Processor."""
    assert parts.arena is not None
    return Processor(
        agent,
        doze=parts.doze,
        metrics=parts.metrics,
        clock=plan.clock,
        moved=plan.moved_clock,
        arena=parts.arena,
        request_bytes_max=plan.config.socket_request_max_bytes,
        idle_ms_max=plan.config.connections_max_idle_ms,
        receive_ms_max=plan.config.kproc_request_receive_timeout_ms,
        logins=LoginLimits(
            plan.config.sasl_server_max_receive_size, plan.config.kproc_authentication_timeout_ms * NS_PER_MS
        ),
        queued_bytes_max=plan.config.queued_max_request_bytes,
        queued_requests_max=_queued_requests_max(plan),
        processors_in_all=lambda settings: sum(processors_in_force(plan.config, settings).values()),
        # The control listener's Processor has no Handlers to route Produce requests to. Other Processors use the router
        # when there are at least two Handlers.
        router=None if is_control(agent) else ProduceRouter(),
        tls_listeners=TlsListeners(
            plan.config,
            [endpoint.name for endpoint in plan.endpoints],
            ticket_secret=plan.secret,
            make=_make_tls,
        ),
    )


def _make_tls(
    table: ConnectionTable, state: ProcessorState, clock: Clock, listeners: TlsListeners
) -> TlsConnections:
    # Import the TLS code at the first TLS connection, because most Processors never need it.
    from kproc.broker.processor.tls_connections import TlsConnections

    return TlsConnections(table, state, clock, listeners)


def _queued_requests_max(plan: BrokerPlan) -> int:
    """Return queued.max.requests if it was set explicitly, or -1 for no limit.

    Kafka's default does not apply, because the rings bound the bytes of requests, and a connection has at most 64
    requests in progress.
    """
    is_set = "queued.max.requests" in plan.config.explicit_settings
    return plan.config.queued_max_requests if is_set else -1


def build_handler(agent: AgentId, plan: BrokerPlan, parts: RoleParts) -> Handler:
    """Build one Handler. If it is started while the broker runs, it handles no request until `Handler.set_linked`."""
    config, metrics, table, syncer = plan.config, parts.metrics, parts.table, parts.syncer
    assert table is not None
    assert syncer is not None
    directory = Path(config.log_dirs)

    def make_partitions(image: Callable[[], ClusterImage], purgatory: Purgatory) -> Partitions:
        return Partitions(
            directory,
            handler_index=agent.index,
            config=config,
            image=image,
            clock=plan.moved_clock,
            table=table,
            purgatory=purgatory,
            syncer=syncer,
            checkpoint=Checkpoint(plan.fs, directory),
            fs=counting(plan.fs, metrics.values),
            # Logs of a Handler that is started while the broker runs can be open in another Handler, or unclean after
            # the death of one, even if the broker's last stop was clean.
            is_clean=plan.was_clean and not parts.is_restart,
        )

    # Only a broker for tests (kproc.time.movable) reads a second clock in each duty cycle.
    handler_type = Handler if plan.movable is None else MovableHandler
    return handler_type(
        agent,
        doze=parts.doze,
        metrics=metrics,
        clock=plan.clock,
        config=config,
        endpoints=plan.endpoints,
        make_partitions=make_partitions,
        syncer=syncer,
        is_linked=not parts.is_restart,
        moved=plan.moved_clock,
    )


def build_controller(agent: AgentId, plan: BrokerPlan, parts: RoleParts) -> Controller:
    """Build the controller: replay the metadata log, and append a record of this start."""
    supervisor = parts.supervisor
    assert supervisor is not None
    log, image = MetadataLog.open(Path(plan.config.log_dirs), plan.clock, _fs_with_faults(plan))
    check_tls = partial(tls_check.problem_with_change, plan.config)
    state = ControllerState(plan.config, image, plan.moved_clock, check_tls=check_tls)
    _log_useless_settings(plan, image)
    try:
        for op, body in _changes_at_start(plan, image, parts):
            do_at_once(state, log, image, op, body)
    except BaseException:
        log.close()
        raise
    status = Status(plan, parts.metrics.slab)
    controller = Controller(
        agent,
        plan=plan,
        doze=parts.doze,
        metrics=parts.metrics,
        state=state,
        image=image,
        log=log,
        operations=Operations(plan, status, supervisor.send_request),
        on_settings=supervisor.send_settings,
        is_restart=parts.is_restart,
    )
    status.image = lambda: controller.image
    if parts.listening is not None:
        assert parts.table is not None
        _answer_scrapes(plan, controller, parts.table, parts.listening)
    return controller


def _changes_at_start(
    plan: BrokerPlan, image: ClusterImage, parts: RoleParts
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the changes of the metadata that each start of the controller makes."""
    yield "register_cluster", {"cluster_id": plan.cluster_id}
    assert parts.supervisor is not None
    handler_count = parts.supervisor.handler_count
    if handler_count is None:
        settings = settings_in_force(image, plan.config)
        handler_count = settings.integer(IO_THREADS, plan.config.num_io_threads)
    yield "set_handler_count", {"count": handler_count}
    # The leader epoch grows at each start of the broker. A restart of the controller alone does not change it.
    if not parts.is_restart:
        # The marker of a clean stop still exists at this point. The supervisor removes it later, when nothing else can
        # make the start fail.
        was_clean = plan.fs.exists(Path(plan.config.log_dirs) / checkpoints.CLEAN_SHUTDOWN_FILE)
        yield "start_broker", {"was_clean": was_clean}


def _log_useless_settings(plan: BrokerPlan, image: ClusterImage) -> None:
    """Log stored settings without effect, settings for tests only, and missing ACLs or users that clients need."""
    for problem in left_out(image, plan.config).values():
        logger.error("%s", problem)
    if fault_watch.may_surprise(plan.config):
        logger.warning("%s", fault_watch.WARNING)
    if locks_everybody_out(plan.config, image.acls):
        logger.warning(
            "there is an authorizer, but nobody may change its rules (ACLs): set super.users=User:NAME, or, if there "
            "is no rule about the cluster yet, allow.everyone.if.no.acl.found=true; then restart the broker"
        )
    if plan.movable is not None and not plan.config.kproc_temporary_directory:
        logger.warning("%s", broker_time.WARNING)
    if nameless := listeners_without_users(plan.config, has_users=bool(image.scram_users)):
        logger.warning(
            "nobody can log in at %s: no SCRAM user exists; stop the broker and create one: "
            "kproc user add NAME --data %s",
            ", ".join(nameless),
            plan.config.log_dirs,
        )


def build_cleaner(agent: AgentId, plan: BrokerPlan, parts: RoleParts) -> Cleaner:
    """Build the cleaner."""
    assert parts.table is not None
    return Cleaner(
        agent,
        doze=parts.doze,
        metrics=parts.metrics,
        clock=plan.dated_clock,
        config=plan.config,
        table=parts.table,
        fs=counting(_fs_with_faults(plan), parts.metrics.values),
    )


def _fs_with_faults(plan: BrokerPlan) -> Fs:
    """Return the file system of the controller or cleaner.

    In a broker for tests its calls fail by fault rules, which it reads from the rules' files.
    """
    if not plan.config.kproc_faults_enable:
        return plan.fs
    from kproc.broker.faults.disk import faulty

    return faulty(plan.fs, plan.config.log_dirs)


def _answer_scrapes(
    plan: BrokerPlan, controller: Controller, table: PartitionTable, listening: socket.socket
) -> None:
    """Let the controller answer HTTP requests for metrics at `listening`, from the status and the Handlers' metrics."""
    load_prometheus()
    figures = BrokerFigures(
        clock=plan.clock,
        directory=Path(plan.config.log_dirs),
        image=lambda: controller.image,
        table=table,
        ask=controller.send_to_handler,
        known_ends=KnownEnds(plan.fs, Path(plan.config.log_dirs)),
    )
    responder = _make_responder(plan, controller.status, figures, listening)
    controller.answer_scrapes(Scrapes(responder, figures))


def _make_responder(
    plan: BrokerPlan, status: Status, figures: BrokerFigures, listening: socket.socket
) -> MetricsResponder:
    exposition = Exposition(status.describe, status.figures, partial(figures_text, figures))
    return MetricsResponder(
        listening,
        render=exposition.render,
        gather=figures.gather,
        clock=plan.clock,
        look=status.sample,
        health=lambda path: health.answer(path, status),
    )
