"""What a run hands on: model folder, model card and report."""
