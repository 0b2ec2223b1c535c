"""The code in the container: prepare a dataset, launch elastic workers, train a language model, sample from it.

It knows neither Pulumi nor Kubernetes. This file imports nothing, so that `python -m trainer.launch` handles signals
before torch is loaded.
"""
