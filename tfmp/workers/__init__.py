"""Starts, watches and stops groups of worker processes.

Knows nothing of TensorFlow or of models. From the outside in:

- :class:`tfmp.workers.group.WorkerGroup`: what the controller needs of a group; :mod:`tfmp.workers.fork_group`
  implements it with a fork server, around the pure state machine in :mod:`tfmp.workers.lifecycle`;
- :class:`tfmp.workers.fork_client.ForkServer`: the process that imports heavy modules once and forks workers;
- :func:`tfmp.workers.ports.hold_ports`: TCP ports kept for the workers.

Nothing is imported here: the fork server loads this package too and should carry only what it uses.
"""
