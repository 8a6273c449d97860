"""Deployment files for Docker Compose, Slurm and Kubernetes, as text. No file of the user's is read or written."""
