"""The test suites of other projects, run against `hopback broker` and against RabbitMQ."""
