"""Start, watch and stop groups of worker processes.

Knows nothing of TensorFlow or of models. The pieces, from the outside in:

- :func:`tfmp.workers.group.run_group` runs one group of workers to its end and returns a
  :class:`~tfmp.workers.spec.GroupResult`; it is a thin shell of processes around the pure state machine in
  :mod:`tfmp.workers.lifecycle`;
- :class:`tfmp.workers.fork_client.ForkServer` is the fork server that imports heavy modules once and forks workers;
- :func:`tfmp.workers.ports.hold_ports` keeps TCP ports for the workers.

Nothing is imported here: the fork server loads this package too and should carry only what it uses.
"""
