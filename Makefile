# Two commands do all the set-up: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What is installed: everything for development, or what the demo needs. Python compiles modules when
# they are first imported: most are not, and pip would compile all of them, for more than a minute.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
DEV := $(VENV)/.installed-dev
DEMO := $(VENV)/.installed-demo
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadscope --no-loadscope-reorder

# Tests start hundreds of processes, and without bytecode each compiles the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-serve docs test test-seed test-slow test-steady durations check bench soak clean java

help:
	@echo "make demo       install into $(VENV) and run the demo on real data"
	@echo "make demo-serve the same data as a live stream, with the dashboard, until Ctrl-C"
	@echo "make test       install and run the tests"
	@echo "make test-slow  the tests that kill processes, fuzz and compare with Spark's own engine"
	@echo "make test TESTS=all   the tests of both, in one run"
	@echo "make test-steady the fast tests 20 times, beside four busy processes; hours"
	@echo "make durations  all tests, and how long each takes: long ones are in make test-slow"
	@echo "make check      ruff, mypy and the layer test"
	@echo "make docs       the documentation as a site, in build/site"
	@echo "make bench      the benchmarks, against peers in the same run; tables and plots in docs/benchmarks"
	@echo "make soak       all tests with all their parameters, and more examples than in CI"
	@echo "make clean      remove everything that these targets made"

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(DEV): $(VENV)/.made pyproject.toml
	$(INSTALL) --editable '.[dev]'
	@touch $(DEV) $(DEMO)

$(DEMO): $(VENV)/.made pyproject.toml
	$(INSTALL) --editable '.[demo]'
	@touch $@

java:
	@command -v java >/dev/null || [ -n "$$JAVA_HOME" ] || { \
		echo "Java 17 or newer is needed to run Spark."; \
		echo "  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless"; \
		echo "  Fedora:          sudo dnf install java-17-openjdk-headless"; \
		echo "  macOS:           brew install openjdk@17"; \
		exit 1; }

demo: $(DEMO) java
	$(BIN)/statekit demo

demo-serve: $(DEMO) java
	$(BIN)/statekit demo --serve

# CI runs all of them in one run: make test TESTS=all
TESTS ?= fast
SELECTED_fast := -m "not slow"
SELECTED_all = --deselect $(SEEDED)

test: $(DEV) java
	$(PYTEST) $(SELECTED_$(TESTS))

# Other histories each day. The seed is in the header: make test-seed SEED=20260131 tries them again.
SEED ?= $(shell date -u +%Y%m%d)
# The slow ones among them, which need not run with two seeds.
SEEDED := tests/unit/testing/test_check.py::test_what_is_right_passes

test-seed: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/unit/testing/test_check.py -k right --whole \
		--statekit-seed=$(SEED)

test-slow: $(DEV) java
	$(PYTEST) -m slow --deselect $(SEEDED)

test-steady: $(DEV) java
	$(BIN)/python -m tests.steady $(PYTEST) -m "not slow"

# Run it where little else runs: which tests are slow ones follows from it.
durations: $(DEV) java
	$(PYTEST) --whole --store-durations

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --whole tests/unit/test_layers.py

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo "open build/site/index.html"

bench: $(DEV) java
	$(BIN)/python -m tests.bench --into docs/benchmarks --readme README.md

soak: $(DEV) java
	STATEKIT_SOAK=1 $(BIN)/python -m pytest --timeout 0

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis demo-data
