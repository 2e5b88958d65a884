"""The raffle: users enqueued over HTTP and inserted in batches, raffles to join and draw."""
