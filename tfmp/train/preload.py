"""Imported once in the helper process, before workers are forked: all that a worker needs, and nothing that
starts TensorFlow's runtime."""

import tfmp.data.feed
import tfmp.distribute.keras_bridge
import tfmp.train.callbacks
import tfmp.train.drills
import tfmp.train.resuming
import tfmp.train.saving
import tfmp.train.settings
import tfmp.train.worker  # noqa: F401
