"""Finds the cluster: given by the user, or described by the variables of the scheduler that started this process.

Each source is one pure function from the environment to a :class:`~tfmp.cluster.discovery.found.Discovered`.
:mod:`choose` takes the first source that applies, in this order:

1. addresses in the configuration or on the command line (with ``--index``);
2. ``TF_CONFIG``, as Kubeflow or the user writes it;
3. an MPI launcher (also inside a Slurm job, whose variables then belong to MPI's own launch daemon);
4. a Slurm step;
5. Kubernetes: an Indexed Job or a StatefulSet.
"""
