# One command each. Environments and the front end are made when first needed and kept until what decides them changes.

TEST := .venv-test/bin
LAB_ARGS ?=
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root) # in a container there is often nobody else
PYTEST_ARGS ?=
BENCHMARKS ?= search_speed cost_speed profile_trace mutations # not published_scripts: it wants a folder of somebody's scripts

.PHONY: help lab demo test check explore bench results format clean lint pins image lab-environment test-environment

help:
	@echo 'make lab      open the quickstart notebook in JupyterLab   (LAB_ARGS=--no-browser)'
	@echo 'make demo     run the quickstart notebook here and print what it recommends'
	@echo 'make check    lint, types and unit tests                   (PYTEST_ARGS="-k memory")'
	@echo 'make test     everything, with moto, the wheel and the browser'
	@echo 'make explore  property tests, with examples drawn at random (PYTEST_ARGS="tests/costs --hypothesis-seed=7")'
	@echo 'make bench    run the benchmarks'
	@echo 'make results  compare recommendations and estimates with the committed record'
	@echo 'make format   format the Python code and mend what ruff can mend'
	@echo 'make pins     write constraints.txt anew from the test environment'
	@echo 'make image    take docs/images/advisor.png anew, in Chromium'
	@echo 'make clean    remove environments, built files and caches'

lab: lab-environment
	.venv/bin/jupyter-lab $(AS_ROOT) $(LAB_ARGS) notebooks/quickstart.ipynb

demo: lab-environment
	.venv/bin/python scripts/demo.py notebooks/quickstart.ipynb

test: test-environment
	scripts/chromium.sh
	scripts/sdk_environments.sh $(TEST)/python
	$(MAKE) --no-print-directory lint
	$(TEST)/python -m pytest $(PYTEST_ARGS)

check: test-environment
	$(MAKE) --no-print-directory lint
	$(TEST)/python -m pytest -m 'not (browser or moto or packaging or slow)' $(PYTEST_ARGS)

# The limit of a test's time is for a fixed number of examples: here there are more, and a failing one is made simple.
explore: test-environment
	$(TEST)/python -m pytest -m hypothesis --hypothesis-profile=explore --timeout=0 $(PYTEST_ARGS)

lint:
	$(TEST)/ruff check --quiet
	$(TEST)/ruff format --quiet --check
	$(TEST)/mypy
	$(TEST)/python scripts/prose.py
	cd js && npm run --silent typecheck && npm run --silent test

bench: test-environment
	@failed=; for name in $(BENCHMARKS); do echo "== $$name"; $(TEST)/python benchmarks/$$name.py || failed=1; done; [ -z "$$failed" ]

results: test-environment
	$(TEST)/python benchmarks/regression.py

format: test-environment
	$(TEST)/ruff check --fix
	$(TEST)/ruff format

pins: test-environment
	scripts/pins.sh $(TEST)/python

clean:
	rm -rf .venv .venv-sdk .venv-test .venv-toolkit artifacts dist js/node_modules js/lib smp_advisor/static smp_advisor/labextension
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find smp_advisor tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

image: test-environment
	scripts/chromium.sh
	$(TEST)/python scripts/advisor_image.py

lab-environment:
	@scripts/environment.sh .venv lab build

test-environment:
	@scripts/environment.sh .venv-test lab,profile,sagemaker dev
