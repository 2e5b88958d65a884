"""Hopback beside its peers and the C client: one node, one run, interleaved. `make bench`."""
