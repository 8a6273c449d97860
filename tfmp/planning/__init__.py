"""What each worker gets, worked out before anything starts. Pure: host and environment are passed in."""
