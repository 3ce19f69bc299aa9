"""Structure-aware fuzzing: `python -m tests.fuzz --requests 500000 --seed 1`."""
