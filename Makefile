# Two commands on a machine that has python3, make and git:
#   make demo   trains and evaluates a recogniser of spoken digit strings on the CPU
#   make test   lints, type-checks and runs the test suite
# And some that take longer:
#   make mutants      changes the code line by line, and says which changes no test notices
#   make test-peers   tests the drop-in modules against the libraries themselves, in environments of their own
#   make docs         builds the documents as a site, links checked
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN ?= runs/digits
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo test lint check mutants test-peers docs clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -7

$(VENV)/.train: requirements/train.txt pyproject.toml scripts/make_venv.py
	$(PYTHON) scripts/make_venv.py $(VENV) requirements/train.txt
	@touch $@

$(VENV)/.test: requirements/test.txt requirements/train.txt requirements/bench.txt requirements/corpora.txt pyproject.toml scripts/make_venv.py
	$(PYTHON) scripts/make_venv.py $(VENV) requirements/test.txt
	@touch $@ $(VENV)/.train

demo: $(VENV)/.train
	$(BIN)/samplewise train recipes/digits.yaml --output $(RUN) --resume
	$(BIN)/samplewise evaluate $(RUN) digits
	@echo "The checkpoint, the log and the results are in $(RUN)"

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: $(VENV)/.test
	$(BIN)/python -m pytest

test: lint check

mutants: $(VENV)/.test
	$(BIN)/python scripts/mutants.py

test-peers: $(VENV)/.test
	$(BIN)/python scripts/test_peers.py

$(VENV)-docs/.docs: requirements/docs.txt
	$(PYTHON) scripts/make_venv.py $(VENV)-docs requirements/docs.txt
	@touch $@

docs: $(VENV)-docs/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict
	@echo "The site is in site/index.html"

clean:
	rm -rf $(VENV) $(VENV)-docs site .pytest_cache .mypy_cache .ruff_cache
