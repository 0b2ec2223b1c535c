"""What a reviewer sees: recorded graphs, snapshots, plans and generated docs."""
