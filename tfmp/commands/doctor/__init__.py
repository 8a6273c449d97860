"""``tfmp doctor``: can this machine train, and reach the others of its cluster? One line a check, each with the fix."""
