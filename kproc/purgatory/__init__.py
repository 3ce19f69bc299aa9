"""Requests that must wait: operations completed by an event or by a deadline, exactly once."""
