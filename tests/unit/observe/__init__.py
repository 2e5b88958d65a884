"""What Hopback says while it runs."""
