"""The statements of the five design documents about messages, as tests."""
