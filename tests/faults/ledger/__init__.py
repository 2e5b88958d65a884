"""A ledger of a test application. It contains an account for each message, which is checked at the
end.
"""
