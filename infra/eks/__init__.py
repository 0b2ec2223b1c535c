"""A cluster on Amazon EKS: one file a concern, read in the order network, cluster, add-ons, nodes, storage."""
