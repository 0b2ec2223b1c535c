"""Stand-ins for the clouds under the real Pulumi engine; only tests start them."""
