"""Messages between the roles of a broker: requests and responses over links, with their types."""
