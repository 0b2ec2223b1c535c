"""Models in the form that the loop trains, and how their weights are loaded and saved."""
