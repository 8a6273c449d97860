"""The life of a worker: build, fit, evaluate, save."""
