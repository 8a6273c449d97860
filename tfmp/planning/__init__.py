"""Plans a run before anything starts: what each worker gets. Pure: host and environment are passed in."""
