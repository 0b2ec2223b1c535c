"""A cluster on Google Kubernetes Engine: one file a concern, read in the order network, cluster, nodes, storage."""
