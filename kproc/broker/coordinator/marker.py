"""Marker: what ends a transaction at one partition, as it travels from the transaction's coordinator to the owner."""

from __future__ import annotations

import msgspec


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """A commit or abort of one producer's open transaction (WriteTxnMarkers, KIP-98; version: KIP-1228)."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int  # 2: the epoch is raised with each transaction, and is checked strictly.
