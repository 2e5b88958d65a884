"""Tests of what works over any broker."""
