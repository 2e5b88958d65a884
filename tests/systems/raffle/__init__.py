"""The raffle as an application."""
