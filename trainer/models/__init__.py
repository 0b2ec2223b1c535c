"""Models as the loop sees them, and their weights in and out."""
