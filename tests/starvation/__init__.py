"""How long others wait while one client sends the largest request of each API: python -m tests.starvation."""
