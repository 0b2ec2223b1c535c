"""The faults of a training, each once, where it can be played: what it breaks, and what must follow.

on_pods.py: pods of any cluster (cluster.py), the local node included; `trainyard prove` plays them. on_processes.py:
what only single processes show of a rendezvous, in a laboratory of network namespaces (lab.py); `python -m faults`
plays them.
"""
