"""Measure Hopback, its peers and the C client on one node, in one run, interleaved. `make bench`."""
