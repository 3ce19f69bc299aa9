"""Fetch: wait until there is enough data, read it, write the response."""
