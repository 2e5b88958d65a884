"""Tests of the file pipeline as an application: its parts, its flows, its gateway."""
