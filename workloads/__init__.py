"""The stack's workloads: they run on any cluster and know no cloud."""
