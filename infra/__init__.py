"""What a cloud bills: configuration, clusters, storage and images."""

import gc

# The clouds' SDKs are a million objects that live until the program ends. Looking for garbage among them every 700
# objects took a fifth of the program's time (gcp-a100: 2.6 s; with this threshold 2.1 s; `python -m bench.preview`).
gc.set_threshold(200_000)
