"""What can go wrong with a group of workers: noticing it, judging it, saying it, injecting it."""
