"""What stands in for clouds and clusters under the real Pulumi engine; only tests start it."""
