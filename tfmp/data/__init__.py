"""Data sets: sources, readers, checks, the machine's decoded copy, and the global order of samples.

Importing this package imports nothing heavy. :mod:`tfmp.data.order`, :mod:`tfmp.data.readers` and
:mod:`tfmp.data.arrays` need numpy; :mod:`tfmp.data.cache` loads it only to make or open arrays, so the launcher can
look at a prepared data set without it.
"""
