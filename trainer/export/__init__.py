"""The outputs of a run: model folder, model card and report."""
