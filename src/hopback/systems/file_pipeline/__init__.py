"""The file pipeline. Seven consumers process uploaded files.

Each consumer has its own queue. A failed message waits for 15 s and then returns only to the queue
where it failed.
"""
