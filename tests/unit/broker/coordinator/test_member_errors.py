"""The errors of heartbeats."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.member_errors import wrong_epoch
from kproc.common.errors import ErrorCode


@pytest.mark.parametrize(("epoch", "order"), [(2, "smaller"), (4, "greater")])
def test_wrong_epoch_says_on_which_side_it_is(epoch: int, order: str) -> None:
    error = wrong_epoch("share", epoch, 3)
    assert error.code == ErrorCode.FENCED_MEMBER_EPOCH
    assert f"The share group member has a {order} member epoch ({epoch})" in str(error.message)
