"""``tfmp bench``: which runs are made, what their figures say, and how that is shown. No TensorFlow.

:mod:`trials` says what is run, :mod:`measure` runs it; :mod:`paired`, :mod:`scaling`, :mod:`cost` and :mod:`advice` are
arithmetic; :mod:`analysis` puts them together for :mod:`tables`, :mod:`plot` and ``bench.json``.
"""
