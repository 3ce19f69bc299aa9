"""Producer ids with few epochs: within a run transactional ids exhaust theirs, and go on with another producer id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kproc.broker.storage import producer_state
from kproc.broker.transaction import rules, state

EPOCH_MAX = state.EPOCH_MAX


@contextlib.contextmanager
def epochs_up_to(most: int) -> Iterator[None]:
    """With that largest epoch, wherever it is looked at."""
    places = [(module, "EPOCH_MAX", most) for module in (state, rules, producer_state)]
    places += [(module, "EXHAUSTED_EPOCH", most - 1) for module in (state, rules)]
    before = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
