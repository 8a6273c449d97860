"""The run folder: layout, claim, recording, reading."""
