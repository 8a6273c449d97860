"""Checkpoints: format, snapshot, writing, export."""
