"""TLS and SASL for clients of a Kafka broker, with Kafka's names of the settings. No code of the server."""
