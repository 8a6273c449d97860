# make train   everything on a fresh machine with Python and make: a virtual environment, the install, the main job
# make test    the same, and all tests with lint and types
# make bench   all benchmarks, on an otherwise idle machine: benchmarks/RESULTS.md (TORCH=python of another environment, for PyTorch)

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: train test test-models test-deploy unit coverage soak bench lint format docs constraints clean

train: $(VENV)/installed
	$(BIN)/tfmp train configs/mnist.yaml

test: lint
	$(BIN)/python -m pytest

# Other models, and faults put into tfmp itself, each compared with plain Keras.
test-models: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/models

# Several hosts on this machine (network namespaces), containers, Slurm, MPI: installs and starts what is missing, so root only.
test-deploy: $(VENV)/installed-deploy
	$(BIN)/python -m pytest tests/deploy

# pytest rewrites every test module; kept as bytecode, that saves four seconds of each run.
unit coverage: export PYTHONDONTWRITEBYTECODE =
unit: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/unit

# Of what the unit tests reach in this process; `make test` runs them without it, as measuring takes time.
coverage: $(VENV)/installed-test
	$(BIN)/python -m pytest tests/unit --cov --cov-report=term

soak: $(VENV)/installed-test
	$(BIN)/python -m tests.soak

bench: $(VENV)/installed-test
	$(BIN)/python benchmarks/results.py $(if $(TORCH),--torch-python $(TORCH))

lint: $(VENV)/installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-test
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(VENV)/installed
	$(BIN)/python -m tfmp.config.reference > docs/configuration.md
	$(BIN)/python -m tfmp.cli.reference > docs/commands.md

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/python pyproject.toml
	$(PIP) install --editable .
	touch $@

# Tests run with the exact versions of constraints.txt where Python is the one that it was written for, since not every
# package has a version for all. `make constraints` takes the newest that fit and writes them down.
PYTHON_IS := import sys; print("\043 Python %d.%d:" % sys.version_info[:2])
PINNED     = $(shell grep -q "^$$($(BIN)/python -c '$(PYTHON_IS)')" constraints.txt && echo --constraint constraints.txt)

$(VENV)/installed-test: $(VENV)/installed constraints.txt
	$(PIP) install --editable '.[test]' $(PINNED)
	touch $@

# The published schemas of Kubernetes are 100 MB: not for everyone.
$(VENV)/installed-deploy: $(VENV)/installed-test
	$(PIP) install --editable '.[test,deploy]'
	touch $@

constraints: $(VENV)/installed
	$(PIP) install --upgrade --upgrade-strategy eager --editable '.[test]'
	$(BIN)/python -c '$(PYTHON_IS)' | sed 's/$$/ what the tests run with; `make constraints` writes it anew./' > constraints.txt
	$(PIP) freeze --exclude-editable --exclude tfmp --exclude pip --exclude setuptools --exclude wheel >> constraints.txt
	touch $(VENV)/installed-test

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
