"""AddressShares: how much of a bounded resource the connections of each client address hold.

A Processor bounds the memory that clients can fill. When a bound is reached, the address that holds most loses
connections, so that one host cannot exclude the others. A host with IPv6 can choose addresses from a whole /64 network,
so such a network counts as one address.
"""

from __future__ import annotations

from kproc.broker.processor.connection import Connection
from kproc.broker.role.handoff import share_key


class AddressShares:
    """Amounts of a resource by connection, and their sum for each address."""

    __slots__ = ("_members", "_sums")

    def __init__(self) -> None:
        self._members: dict[bytes, dict[Connection, int]] = {}
        self._sums: dict[bytes, int] = {}

    def put(self, connection: Connection, amount: int) -> None:
        """Set the amount of a connection. The connections of an address stay in the order of their first amount."""
        key = share_key(connection.origin.address)
        members = self._members.setdefault(key, {})
        self._sums[key] = self._sums.get(key, 0) + amount - members.get(connection, 0)
        members[connection] = amount

    def remove(self, connection: Connection) -> None:
        """Remove a connection, and subtract its amount from the sum of its address. Do nothing if it is not present."""
        key = share_key(connection.origin.address)
        members = self._members.get(key, {})
        amount = members.pop(connection, None)
        # The connection never held anything. Connections are removed from every table at their end, whatever
        # they used.
        if amount is None:
            return
        if members:
            self._sums[key] -= amount
        else:
            del self._members[key], self._sums[key]

    def amount_of(self, connection: Connection) -> int:
        """Return how much of the resource a connection holds."""
        return self._members.get(share_key(connection.origin.address), {}).get(connection, 0)

    def share_of(self, connection: Connection) -> int:
        """Return how much of the resource all connections of this connection's address hold."""
        return self._sums.get(share_key(connection.origin.address), 0)

    def share_of_key(self, key: bytes) -> int:
        """Return how much of the resource the connections of an address hold, by its share_key."""
        return self._sums.get(key, 0)

    def largest_share(self) -> int:
        """Return the largest amount that the connections of one address hold, or 0 if no connection holds any."""
        return max(self._sums.values(), default=0)

    def largest_holders(self) -> dict[Connection, int]:
        """Return the connections of the address that holds most, with their amounts.

        The connection that got its first amount by `put` earliest comes first.
        """
        if not self._sums:
            return {}
        # Take from the largest address and not from the largest connection, because a client can open any
        # number of connections.
        return self._members[max(self._sums, key=self._sums.__getitem__)]
