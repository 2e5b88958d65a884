"""Tests of code that works over any broker."""
