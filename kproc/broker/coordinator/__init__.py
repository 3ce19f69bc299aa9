"""Rules that all coordinators of internal topics (groups, transactions) share. No I/O, no clock, no thread."""
