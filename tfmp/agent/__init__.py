"""Runs a group of workers: start, monitor, diagnose, restart, report."""
