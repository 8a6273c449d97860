"""What each command does: puts the parts together. No TensorFlow here."""
