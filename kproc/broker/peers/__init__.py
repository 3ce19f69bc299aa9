"""Requests between Handlers, the controller and the cleaner, and how their responses are joined."""
