"""The documented systems as applications."""
