"""A ledger: every message of a test application is accounted for, and the accounts are checked."""
