"""Who the workers are and where they run. Starts no process, imports neither TensorFlow nor numpy."""
