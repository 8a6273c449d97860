"""What a command does, from resolved settings to exit code: the parts put together. No TensorFlow here.

``cli`` parses and calls one function of this package; ``launch`` runs the processes; ``report`` shows and records.
"""
