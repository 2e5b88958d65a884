"""Servers and helpers for tests. Private RabbitMQ nodes are started from the Debian package and
removed afterwards.
"""
