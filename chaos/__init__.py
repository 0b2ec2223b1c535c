"""The fault matrix: a real training on several nodes, broken in every way that a cloud breaks it.

Each node is a network namespace of this machine with a launcher in it as its pod would be; etcd and a name server have
namespaces of their own. `python -m chaos` (root) runs the rows of rows.py and writes the table.
"""
