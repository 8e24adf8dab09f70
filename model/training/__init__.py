"""From data to a trained model: read config.py for what can be set, loop.py for what happens."""
