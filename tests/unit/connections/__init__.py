"""Lines to a broker: channels, supervision, publishing, declaring."""
