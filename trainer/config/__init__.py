"""The one schema of a training: settings, presets and rules."""
