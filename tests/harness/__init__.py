"""Private RabbitMQ nodes for tests: started from the Debian package, gone afterwards."""
