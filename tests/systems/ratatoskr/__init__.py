"""Tests of Ratatoskr as an application."""
