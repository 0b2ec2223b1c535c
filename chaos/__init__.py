"""The fault matrix: a real training on several nodes, broken in every way that a cloud breaks it.

Each node is a network namespace of this machine that runs a launcher as its pod would. etcd and a name server have
their own namespaces. `python -m chaos` (root) plays the rows of rows.py and writes the table.
"""
