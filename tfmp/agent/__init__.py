"""The controller of a run: start workers, watch them, find who failed, start again, report."""
