"""Checkpoints: file format, snapshot of the training state, writing, export."""
