"""Scaling of the elastic runtime: many agents on one etcd, and many pods in one Job."""
