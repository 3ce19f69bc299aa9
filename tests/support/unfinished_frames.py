"""Clients of a Processor that begin frames and do not finish them."""

from __future__ import annotations

from tests.support.processor_rig import Client, ProcessorRig, framed


def begin_frames(rig: ProcessorRig, count: int, announced: int, sent: int, host: str) -> list[Client]:
    """Open connections that send the first bytes of a frame each."""
    clients = []
    for _ in range(count):
        client = rig.connect(host=host)
        client.send(framed(bytes(announced))[:sent])
        clients.append(client)
    rig.settle()
    return clients
