"""The faults of a training, each once: what it breaks, what must follow, and where it can be played.

on_processes.py and on_pods.py have the faults. Places: lab.py (network namespaces of this machine, each with a launcher
as its pod would run it, a real etcd and a name server), node.py (pods on the local Kubernetes node), cluster.py (any
cluster; `trainyard prove` plays these). `python -m faults` plays them and writes the tables.
"""
