"""The file pipeline: uploaded files are validated, drawn, described, projected and audited.

Each stage has a queue. A failed message waits 15 s and returns only to the stage that failed.
"""
