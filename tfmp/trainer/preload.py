"""Imported once in the fork server, before workers are forked: all that a worker needs, and nothing that
starts TensorFlow's runtime."""

import tfmp.trainer.worker  # noqa: F401
