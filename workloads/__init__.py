"""What runs on any cluster, and knows no cloud."""
