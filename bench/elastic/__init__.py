"""Scaling of the elastic runtime: many agents on one etcd, many pods in one Job."""
