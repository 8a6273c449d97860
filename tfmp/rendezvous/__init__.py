"""How the launchers of several hosts meet before TensorFlow starts, and keep in touch while it trains.

TensorFlow waits for its peers in silence, in C++, where no signal reaches Python; it compares nothing, and notices some
failures late or never. So the launchers meet first, at the address of rank 0 and on TensorFlow's own port: no further
port has to be opened. From the inside out:

- :mod:`wire`: messages as bytes; :mod:`identity`: what must be equal on all workers; :mod:`findings`: what was found at
  an address, in words; :mod:`protocol`: messages, actions and waits; :mod:`end_reasons`: who cannot join, how it ends;
- :mod:`leader` and :mod:`member`, the two sides, which share :mod:`side`, and :mod:`claim`, the wait for one's own
  port: pure state machines;
- :mod:`watching`: signs of life, and whose fault a failure was;
- :mod:`links`, :mod:`dialing` and :mod:`session`: the sockets around them.
"""
