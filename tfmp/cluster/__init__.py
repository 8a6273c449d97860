"""Who the workers are, where they run, and what each of them gets: no processes, no TensorFlow, no numpy."""
