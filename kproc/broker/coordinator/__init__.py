"""Coordinators of internal topics: the rules that all share, and the runtime that loads them and writes for them."""
