"""Tests of the event bus as an application."""
