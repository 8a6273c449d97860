"""Deployment files of a configuration, as text: Docker Compose, Slurm, Kubernetes. Pure; no file is read or written."""
