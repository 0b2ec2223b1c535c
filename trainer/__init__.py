"""What runs in the container: prepare a dataset, launch elastic workers, train a language model, sample from it.

Knows neither Pulumi nor Kubernetes. Imports stay inside the modules, so that `python -m trainer.launch` answers
signals before torch is loaded.
"""
