"""The roles that know everything below them: Handler, controller, cleaner, supervisor, and the wiring."""
