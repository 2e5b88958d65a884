"""Tests of the project on bare Debian systems: `make pristine`."""
