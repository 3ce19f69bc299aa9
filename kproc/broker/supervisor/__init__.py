"""Starts and runs the roles of a broker: the supervisor, its children, their links, and changes at run time."""
