"""Start, watch and stop groups of worker processes.

Knows nothing of TensorFlow or of models. The pieces, from the outside in:

- :func:`tfmp.launch.runner.run_group` runs one group of workers to its end and returns a
  :class:`~tfmp.launch.spec.GroupResult`; it is a thin shell of processes around the pure state machine in
  :mod:`tfmp.launch.supervisor`;
- :class:`tfmp.launch.zygote_client.Zygote` is the helper process that imports heavy modules once and forks workers;
- :func:`tfmp.launch.ports.hold_ports` keeps TCP ports for the workers.

Nothing is imported here: the helper process loads this package too and should carry only what it uses.
"""
