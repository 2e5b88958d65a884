"""FreeFlow: seven domains on one topic exchange, and three waits for what fails."""
