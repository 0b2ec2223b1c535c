"""From sources of text to batches of tokens."""
