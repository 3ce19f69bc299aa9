"""How a client of a Kafka broker encrypts and logs in, by Kafka's names of the settings. Nothing of the server's."""
