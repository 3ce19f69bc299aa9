"""Authentication and authorization of clients: rules without sockets and links to other roles."""
