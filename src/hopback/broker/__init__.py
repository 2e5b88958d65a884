"""Brokers behind one port: RabbitMQ over our wire, and the embedded broker."""
