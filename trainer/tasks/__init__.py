"""What a training learns: one module a task."""
