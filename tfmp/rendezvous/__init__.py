"""The rendezvous: launchers of several hosts connect before TensorFlow starts, and stay in touch while it trains.

TensorFlow waits for its peers silently, in C++, where no signal reaches Python. It compares nothing and notices some
failures late or never. So the launchers connect first, at the address of rank 0 and on TensorFlow's own ports: no
other port has to be opened. From the inside out:

- :mod:`identity`: what must be equal on all workers; :mod:`peer_status`: what was found at an address, in words;
  :mod:`protocol`: messages, actions and waits; :mod:`end_reasons`: why a worker cannot join, or why the group ends;
- :mod:`leader` and :mod:`member`, the two roles, which share :mod:`base` (signs of life, and whose fault a failure
  was), and :mod:`port_claim`, the wait for the own port: pure state machines;
- :mod:`transport` and :mod:`session`: the sockets around them. The bytes are in :mod:`tfmp.ipc`.
"""
