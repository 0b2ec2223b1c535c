"""The acceptance run of a stack: `trainyard prove --stack NAME` brings one up, tries every claim on it, destroys it."""
