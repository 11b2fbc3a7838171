# Two commands do all the set-up: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test check bench soak clean java

help:
	@echo "make demo   install into $(VENV) and run the demo on real data"
	@echo "make test   install and run the tests"
	@echo "make check  ruff, mypy and the layer test"
	@echo "make bench  the benchmarks, against peers in the same run; tables and plots in docs/benchmarks"
	@echo "make soak   the slow suites, longer than in CI"
	@echo "make clean  remove what was made"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

java:
	@command -v java >/dev/null || [ -n "$$JAVA_HOME" ] || { \
		echo "Java 17 or newer is needed to run Spark."; \
		echo "  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless"; \
		echo "  Fedora:          sudo dnf install java-17-openjdk-headless"; \
		echo "  macOS:           brew install openjdk@17"; \
		exit 1; }

demo: $(STAMP) java
	$(BIN)/statekit demo

test: $(STAMP) java
	$(BIN)/python -m pytest -n 2 --no-loadscope-reorder

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(STAMP) java
	$(BIN)/python -m tests.bench --into docs/benchmarks

soak: $(STAMP) java
	STATEKIT_SOAK=1 $(BIN)/python -m pytest -m slow

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-data
