"""Data sets: reading, checking, the machine's decoded copy, and the global order of samples.

Importing this package imports nothing heavy. :mod:`tfmp.data.order`, :mod:`tfmp.data.idx` and
:mod:`tfmp.data.arrays` need numpy; :mod:`tfmp.data.cache` loads it only where arrays are made or opened, so the
launcher can look at a prepared data set without it.
"""
