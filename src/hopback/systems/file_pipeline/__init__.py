"""The file pipeline: seven consumers process uploaded files.

Each stage has a queue. A failed message waits 15 s and returns only to the stage that failed.
"""
