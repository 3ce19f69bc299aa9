"""The wait of other clients while one sends the largest request of each API: python -m tests.starvation."""
