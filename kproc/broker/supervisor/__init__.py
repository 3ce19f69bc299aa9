"""Starting and running the roles of a broker: the supervisor, its children, changes at run time, the wiring."""
