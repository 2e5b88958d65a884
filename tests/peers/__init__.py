"""Test suites of other projects, run against `hopback broker` and RabbitMQ."""
