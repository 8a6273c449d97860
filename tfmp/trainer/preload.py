"""Imported once in the fork server, before workers are forked: all that a worker needs, and nothing that
starts TensorFlow's runtime."""

import tfmp.checkpoint.callback
import tfmp.checkpoint.export
import tfmp.distribute.feed
import tfmp.distribute.keras_bridge
import tfmp.trainer.callbacks
import tfmp.trainer.faults
import tfmp.trainer.model
import tfmp.trainer.worker  # noqa: F401
