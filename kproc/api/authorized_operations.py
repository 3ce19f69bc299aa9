"""The bit fields of KIP-430: what this client may do, as Kafka answers without an authorizer (everything).

Bit n is AclOperation n: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8, CLUSTER_ACTION 9,
DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
"""

from __future__ import annotations

from typing import Final


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


ALL_ON_TOPIC: Final = _bits(3, 4, 5, 6, 7, 8, 10, 11)
ALL_ON_CLUSTER: Final = _bits(5, 7, 8, 9, 10, 11, 12)
ALL_ON_GROUP: Final = _bits(3, 6, 8, 10, 11)
# "Not asked for, or not known": the smallest int32.
NOT_TOLD: Final = -(2**31)
