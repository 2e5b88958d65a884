"""Checks of a release before it is published: `make release-check`."""
