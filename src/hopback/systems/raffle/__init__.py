"""The raffle. Users are sent over HTTP and inserted in batches. They can join raffles, which are
then drawn.
"""
