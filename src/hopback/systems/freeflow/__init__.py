"""FreeFlow. Seven domains share one topic exchange, and failed events are retried after three
different delays.
"""
