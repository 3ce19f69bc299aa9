"""TLS and SASL for clients of a Kafka broker, with Kafka's names of the settings.

The broker does not use these modules.
"""
