"""FreeFlow: seven domains on one topic exchange, with three waits for failed events."""
