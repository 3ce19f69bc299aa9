"""FaultSwitch: fault injection in one Handler, which is off until the first rule.

While rules about the disk exist, FaultSwitch diverts the file system of this Handler's logs to one that obeys them.

A broker without kproc.faults.enable rejects the operations, and a broker without rules imports nothing of
`kproc/broker/faults/`. Any Handler adds and removes rules, tells all others, and answers when each has read them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kproc.broker.calls.calls import Call, Lost, OnResult, Reply
from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import FaultOperation
from kproc.broker.peers.registered_calls import handles
from kproc.broker.request.context import Services
from kproc.broker.storage.counting_fs import CountingFs
from kproc.broker.storage.format import FAULTS_DIRECTORY

if TYPE_CHECKING:
    from kproc.broker.faults.control import FaultControl
    from kproc.broker.faults.injector import FaultInjector
    from kproc.broker.request.request import HandlerRequest
    from kproc.broker.storage.fs import Fs

_OFF: Final = (
    "fault injection is off: start a broker for tests, and no other one, with kproc.faults.enable=true"
)


class FaultsChanged(msgspec.Struct, array_like=True):
    """A call to another Handler to read the fault rules again."""


RELOAD_FAULTS: Final[Call[FaultsChanged, Reply]] = Call("reload_faults", FaultsChanged, Reply)


class FaultSwitch:
    """Creates the injector of one Handler when there are rules. make_injector: called once, at the first rule."""

    __slots__ = ("_control", "_make_injector", "_real_fs", "_services", "injector")

    def __init__(self, services: Services, make_injector: Callable[[], FaultInjector]) -> None:
        self._services = services
        self._make_injector = make_injector
        self._control: FaultControl | None = None
        self._real_fs: Fs | None = None  # While rules about the disk exist: the file system without faults.
        self.injector: FaultInjector | None = None

    @property
    def is_enabled(self) -> bool:
        return self._services.config.kproc_faults_enable

    def respond(
        self, request: HandlerRequest, operation: FaultOperation, on_reply: Callable[[OwnAnswer], None]
    ) -> None:
        """Respond to a client's operation on fault rules, with an error without kproc.faults.enable."""
        if not self.is_enabled:
            on_reply(OwnAnswer(error=_OFF))
            return
        self._open_control().respond(request, operation, on_reply)

    def _open_control(self) -> FaultControl:
        if self._control is None:
            from kproc.broker.faults.control import FaultControl

            self._control = FaultControl(self._services, self._reload_all)
        return self._control

    def release(self, connection_ids: Collection[int]) -> None:
        """Remove the rules that these connections have added, because they have ended.

        Another Handler may have added them and died. Therefore the files say which rules these are, not this object.
        """
        if self._has_directory():
            self._open_control().release(connection_ids)

    def on_processor_death(self, connection_ids: Collection[int]) -> None:
        """Remove the rules that the connections of a dead Processor have added.

        `connection_ids` can lack some of them, because this Handler knows only connections that have sent a request
        since its start, and a connection can have migrated to the Processor just before. Therefore also list the
        connections of all living Processors, and remove each rule whose connection is not in the list.
        """
        self.release(connection_ids)
        self._release_dead()

    def _release_dead(self) -> None:
        if self._has_directory():
            self._open_control().release_dead()

    def _has_directory(self) -> bool:
        """Return True if a rule was ever added since the broker's start."""
        return self.is_enabled and Path(self._services.config.log_dirs, FAULTS_DIRECTORY).is_dir()

    def load(self) -> None:
        """Read the rules that exist at the start of this Handler. Remove those whose connections have ended before."""
        if self.injector is None and self._has_directory():
            self.reload()
            self._release_dead()

    def reload(self) -> None:
        """Read the rules, because they have changed."""
        if self.injector is None:
            self.injector = self._make_injector()
        self.injector.reload()
        self._divert_disk(self.injector.has_disk_rules)
        if self._control is not None:
            self._control.discard_all_but(self.injector.rule_ids)

    def _divert_disk(self, has_rules: bool) -> None:
        """Apply the rules about the disk to this Handler's logs, or stop that if no such rule exists any more."""
        fs = self._services.owner.partitions.fs
        if has_rules == (self._real_fs is not None) or not isinstance(fs, CountingFs):
            return
        if self._real_fs is not None:
            fs.divert(self._real_fs)
            self._real_fs = None
        else:
            from kproc.broker.faults.disk import faulty

            self._real_fs = fs.divert(faulty(fs.wrapped, self._services.config.log_dirs))

    def close(self) -> None:
        if self.injector is not None:
            self.injector.close()

    def _reload_all(self, on_done: Callable[[], None]) -> None:
        """Let all Handlers read the rules again. `on_done` is called when all have done so."""
        self.reload()
        services = self._services
        waiting = {each for each in range(services.image.handler_count) if each != services.handler_index}
        if not waiting:
            on_done()

        def on_reply(handler: int, _reply: Reply | Lost) -> None:
            # A Handler that has died is replaced by one that reads the rules at its start.
            waiting.discard(handler)
            if not waiting:
                on_done()

        for handler in tuple(waiting):
            services.peers.ask(handler, RELOAD_FAULTS, FaultsChanged(), partial(on_reply, handler))


@handles(RELOAD_FAULTS)
def handle_reload_faults(services: Services, _body: FaultsChanged, on_reply: OnResult[Any]) -> None:
    """Read the fault rules again, because another Handler that has changed them calls this."""
    faults = services.clients.faults
    if faults is not None:
        faults.reload()
    on_reply(Reply())
