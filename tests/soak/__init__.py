"""The soak: an hour of everything at once, and whether the broker is afterwards as it was before.

    python -m tests.soak --minutes 60 --seed 1

`run.py` leads; `ledger.py` judges records as they come, `readers.py` and `visitors.py` are the clients, `figures.py` is
what is measured of the broker, with the tolerances and their reasons.
"""
