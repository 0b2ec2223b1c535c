"""What a cloud bills: configuration, clusters, storage and images."""
