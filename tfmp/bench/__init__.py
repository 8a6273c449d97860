"""``tfmp bench``: trials, statistics, advice. No TensorFlow.

:mod:`trials` decides what to run and :mod:`measure` runs it. :mod:`stats` and :mod:`advice` are arithmetic.
:mod:`analysis` combines them for :mod:`tables`, :mod:`plot` and ``bench.json``.
"""
