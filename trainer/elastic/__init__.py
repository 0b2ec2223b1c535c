"""The launcher's agent and rendezvous; knows no models."""
