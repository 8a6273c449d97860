"""tfmp: multi-process TensorFlow training made easy, right and fast.

Importing this package never imports TensorFlow: the command line and the launcher stay light, and only the
worker processes (see :mod:`tfmp.trainer`) and people who import :mod:`tfmp.distribute` pay for it.
"""

__version__ = "0.1.0"
