"""A client request inside a Handler or the controller: its context, rights, dispatch, and division into slices."""
