"""Tests of the raffle as an application."""
