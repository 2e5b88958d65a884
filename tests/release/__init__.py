"""What a release has to stand before it is published: `make release-check`."""
