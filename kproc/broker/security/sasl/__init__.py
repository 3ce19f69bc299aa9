"""SASL on the broker's side, without I/O: mechanisms, credentials, and the course of one login."""
