"""A module that prints while it is imported, as TensorFlow does."""

import sys

print("imported, on standard output")
print("imported, on standard error", file=sys.stderr)
