"""Tests of FreeFlow as an application."""
