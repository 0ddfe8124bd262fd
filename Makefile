# make demo | test | test-newest | test-middle | test-all | test-libraries | test-browser | bench | lint | fuzz | mutants | test-suites | docs | dist | clean
#
# A target makes the virtual environment it needs on first use: .venv from $(PYTHON), .venv-newest from
# the newest Python of the machine, .venv-middle from its Python 3.12, with JAX 0.11. Stamps in them
# remember which extras of pyproject.toml are installed.

PYTHON ?= python3
NEWEST ?= $(shell .ci/newest-python)
MIDDLE ?= $(shell .ci/newest-python 3.12)
PYTEST ?= --numprocesses auto --maxprocesses 4 --quiet
QUICK  ?= tests/test_calls.py tests/test_decorator.py tests/test_import_export.py \
          tests/donation/test_matched.py tests/lint/test_residual_rules.py tests/passes/test_residuals.py
ONCE   ?= tests/analysis tests/cost tests/html tests/lint tests/run tests/saving \
          tests/donation/test_auto_generated.py tests/test_agreement_of_residuals.py tests/test_architecture.py \
          tests/test_bench.py tests/test_ci_files.py tests/test_docs.py tests/test_fuzz.py \
          tests/test_growth_of_benchmarks.py tests/test_models_as_arguments.py tests/test_mutants.py \
          tests/test_order.py tests/test_pytest_plugin.py tests/test_setup_work.py
QUICK_ENOUGH = --ends slow
QUICKER = -m "not slow" --ends all
UNOPTIMISED = --xla_backend_optimization_level=0
BENCH  ?=
FUZZ   ?= --minutes 10 --processes 2
MUTANTS ?=
SUITES ?=

# What XLA makes of a test's program is kept for the next run; to compile takes a third of the time.
test test-newest test-middle: export JAX_COMPILATION_CACHE_DIR ?= $(HOME)/.cache/jaxpr-opt/programs
test test-newest test-middle: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
test test-newest test-middle: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES = -1
# The bytecode of rewritten asserts, too: each process would take 11 s to make it again.
unexport PYTHONDONTWRITEBYTECODE
# LLVM optimises what the oldest JAX compiles, and on the newest only where all tests run: it takes long.
test-newest: export XLA_FLAGS ?= $(UNOPTIMISED)

pip_install = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable
versions = -c 'import jax, platform; print("Python", platform.python_version(), "JAX", jax.__version__)'

.PHONY: demo test bench lint test-newest test-middle test-all test-libraries test-browser fuzz mutants test-suites docs dist clean
.NOTPARALLEL:
.DEFAULT_GOAL := test

demo: .venv/stamp
	.venv/bin/python -m examples.demo

# Of slow tests the first and the last set of parameters; of tests of a pass with many sets, every second.
test: .venv/stamp-test
	@.venv/bin/python $(versions)
	.venv/bin/python -m pytest $(PYTEST) $(QUICK_ENOUGH)

bench: .venv/stamp-bench .venv/stamp-enzyme
	.venv/bin/python -m bench $(BENCH)

lint: .venv/stamp-lint
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/pyright --pythonpath .venv/bin/python

# Of each test the first and the last set of parameters; none of what is slow, and of what looks at graphs, shapes,
# processes and pages: once is enough.
test-newest: .venv-newest/stamp-test
	@.venv-newest/bin/python $(versions)
	.venv-newest/bin/python -m pytest $(PYTEST) $(QUICKER) $(addprefix --ignore=,$(ONCE))

# Only where it is asked for: to look for a Python takes a second.
test-middle: $(and $(filter test-middle test-all,$(MAKECMDGOALS)),$(MIDDLE),.venv-middle/stamp-test)
	@if [ -z "$(MIDDLE)" ]; then \
		echo "JAX 0.11 was not tested: it takes a Python 3.12 (say where with MIDDLE=...)."; \
	else \
		.venv-middle/bin/python $(versions) && .venv-middle/bin/python -m pytest $(PYTEST) $(QUICK); \
	fi

test-all: QUICK = tests
test-all: ONCE =
test-all: QUICK_ENOUGH =
test-all: QUICKER =
test-all: UNOPTIMISED =
test-all: test test-newest test-middle

test-browser: .venv/stamp-browser
	.venv/bin/python -m pytest --quiet tests/browser

test-libraries: .venv/stamp-libraries .venv-newest/stamp-libraries
	@for venv in .venv .venv-newest; do \
		$$venv/bin/python $(versions) && $$venv/bin/python -m pytest $(PYTEST) -rs tests/test_libraries.py tests/test_models.py || exit; \
	done

# Programs at random, and tests that are tested: docs/trust.md.
fuzz: .venv/stamp-test .venv-newest/stamp-test
	PYTHONPATH=tests .venv/bin/python -m fuzz --python .venv/bin/python .venv-newest/bin/python $(FUZZ)

mutants: .venv-newest/stamp-test
	PYTHONPATH=tests .venv-newest/bin/python -m mutants $(MUTANTS)

test-suites: .venv-suites/stamp-test
	PYTHONPATH=tests .venv-suites/bin/python -m suites $(SUITES)

# A site of the pages in docs/, with a reference made from docstrings: build/docs/index.html.
docs: .venv/stamp-docs
	.venv/bin/python -m sphinx --quiet --fail-on-warning -c docs . build/docs

# A wheel and a source distribution in dist/, and the wheel tried where nothing else is installed.
dist:
	rm -rf dist build
	$(PYTHON) -m venv build/making && build/making/bin/python -m pip install --quiet build
	build/making/bin/python -m build --outdir dist . > build/log
	$(PYTHON) -m venv build/clean && build/clean/bin/python -m pip install --quiet dist/*.whl
	cd build && clean/bin/jaxpr-opt --version && clean/bin/python -c "$(try)"

try = import jax, jaxpr_opt; print(jax.grad(jaxpr_opt.optimize(lambda x: x * x))(3.0))

clean:
	rm -rf .venv .venv-newest .venv-middle .venv-suites build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv-newest/bin/python:
	$(NEWEST) -m venv .venv-newest

.venv-middle/bin/python:
	$(MIDDLE) -m venv .venv-middle

.venv-suites/bin/python:
	$(NEWEST) -m venv .venv-suites

.venv/stamp: pyproject.toml | .venv/bin/python
	$(pip_install) .
	@touch $@

.venv/stamp-enzyme: pyproject.toml | .venv/bin/python
	$(pip_install) '.[enzyme]' || echo "Enzyme-JAX does not install here: its rows will say so."
	@touch $@

.venv/stamp-%: pyproject.toml | .venv/bin/python
	$(pip_install) '.[$*]'
	@touch $@

.venv-newest/stamp-%: pyproject.toml | .venv-newest/bin/python
	$(pip_install) '.[$*]'
	@touch $@

.venv-middle/stamp-%: pyproject.toml | .venv-middle/bin/python
	$(pip_install) '.[$*]' 'jax==0.11.*'
	@touch $@

.venv-suites/stamp-%: pyproject.toml | .venv-suites/bin/python
	$(pip_install) '.[$*]'
	@touch $@
