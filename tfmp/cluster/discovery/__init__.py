"""Where the cluster is described: by hand, or by the variables of what started this process.

One pure function a source: the environment in, a :class:`~tfmp.cluster.discovery.found.Discovered` out, or ``None``
where the source has nothing to say. Which source speaks is decided in :mod:`choose`, in this order:

1. addresses in the configuration or on the command line (with ``--index``);
2. ``TF_CONFIG``: Kubeflow writes it, and whoever writes it means it;
3. MPI, where its launcher started this process (inside a Slurm job too: Slurm's variables are then those of MPI's own
   fork server);
4. a Slurm step;
5. Kubernetes: an Indexed Job or a StatefulSet.
"""
