"""Measure Hopback, its peers and the C client on one node. Their runs are interleaved. Run with
`make bench`.
"""
