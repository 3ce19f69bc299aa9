"""Handler: started while the controller is away, it waits for the metadata and sleeps."""

from __future__ import annotations

from pathlib import Path

from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.raw import list_offsets_fields


def test_handler_sleeps_while_requests_wait_for_metadata(tmp_path: Path) -> None:
    with HandlerRig(tmp_path) as rig:
        rig.kill(0)
        rig.start_handler(0, is_restart=True, has_metadata=False)
        handler = rig.handler()
        rig.processors[0].send(ApiKey.LIST_OFFSETS, 9, list_offsets_fields("t", [(0, -1)]))
        assert handler.do_work(0) == 0, "nothing can be answered yet"
        assert not handler.has_input(), "it would spin until the controller comes"
        assert rig.processors[0].answers() == []
        rig.send_snapshot(0)
        assert len(rig.processors[0].answers()) == 1


def test_handler_sleeps_while_requests_wait_for_links(tmp_path: Path) -> None:
    with HandlerRig(tmp_path) as rig:
        rig.kill(0)
        rig.start_handler(0, is_restart=True, is_linked=False)
        handler = rig.handler()
        rig.processors[0].send(ApiKey.LIST_OFFSETS, 9, list_offsets_fields("t", [(0, -1)]))
        assert handler.do_work(0) == 0
        assert not handler.has_input()
        handler.set_linked()
        assert len(rig.processors[0].answers()) == 1
