"""The acceptance run of a stack: `python -m prove --stack NAME` brings one up, tries every claim on it, destroys it."""
