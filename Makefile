# Environments and the front end are built when they are first needed, and again when their inputs change.

TEST ?= .venv-test/bin
LAB_ARGS ?=
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root) # in a container, root is often the only user
PYTEST_ARGS ?=
WITHOUT ?=
# One process per core, and one with the browser, which waits more than it computes.
PROCESSES ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )))
PYTEST = $(TEST)/python -m pytest --numprocesses=$(PROCESSES) --max-worker-restart=4 $(addprefix --without=,$(WITHOUT))
PYTHONS ?=
unexport PYTHONDONTWRITEBYTECODE # every process would compile every module again
LINT := style types prose front-end
TOGETHER = +@$(MAKE) --no-print-directory --jobs --keep-going
empty :=
LIGHT := browser moto packaging sagemaker tools torch transformers # what the tests of `make check` do without
BENCHMARKS ?= cost_speed checker_speed profile_trace same_under_load

.PHONY: accuracy help lab demo check test release-test loaded tests unit-tests lint $(LINT) all-tests matrix explore dist bench results format clean docs notebooks pages pins images image lab-environment test-environment check-environment extra

help:
	@echo 'make lab      open the quickstart notebook in JupyterLab   (LAB_ARGS=--no-browser)'
	@echo 'make demo     run the quickstart notebook and print its results'
	@echo 'make check    style, prose and unit tests, in an environment without PyTorch and browser   (PYTEST_ARGS="-k memory")'
	@echo 'make test     lint, types and tests with PyTorch, a mock of AWS, the wheel and one browser   (WITHOUT="torch browser" leaves out their tests)'
	@echo 'make release-test  all tests: entire tables, the oldest SDKs and JupyterLab, and every published Python'
	@echo 'make loaded   make test next to four busy processes, at the lowest priority'
	@echo 'make matrix   unit tests with the published Python versions, oldest and newest dependencies (PYTHONS="3.12 3.14")'
	@echo 'make explore  property tests with new random examples (PYTEST_ARGS="tests/costs --hypothesis-seed=7"), and of wrong arguments'
	@echo 'make bench    run the benchmarks'
	@echo 'make dist     build sdist, wheel, bill of materials and checksums into dist/, reproducibly'
	@echo 'make accuracy score the cost model on all measured runs, and write docs/accuracy.md'
	@echo 'make results  compare recommendations and estimates with the committed record'
	@echo 'make format   format the Python code and apply the fixes of ruff'
	@echo 'make docs     build the documentation site, site/index.html'
	@echo 'make pages    write the generated pages of docs/, and the outputs in the others'
	@echo 'make notebooks run the notebooks and save their outputs'
	@echo 'make pins     write constraints.txt from the test environment'
	@echo 'make images   print the images that AWS no longer patches   (DAY=2027-01-31)'
	@echo 'make image    take the pictures of docs/images in Chromium'
	@echo 'make clean    remove environments, built files and caches'

lab: lab-environment
	.venv/bin/jupyter-lab $(AS_ROOT) $(LAB_ARGS) notebooks/quickstart.ipynb

demo: lab-environment
	.venv/bin/jupyter nbconvert --log-level=ERROR --execute --to=markdown --stdout --NbConvertBase.display_data_priority=text/plain notebooks/quickstart.ipynb

check: check-environment
	$(TOGETHER) unit-tests style prose TEST=.venv-check/bin

# The parts run side by side, and each prints its time.
test: test-environment
ifeq ($(filter browser,$(WITHOUT)),)
	$(TEST)/python scripts/browser.py
endif
ifeq ($(filter moto,$(WITHOUT)),)
	scripts/sdk_environments.sh $(TEST)/python v2-newest v3-newest
endif
	$(TOGETHER) tests $(LINT)

release-test: test-environment
	$(TEST)/python scripts/browser.py
	scripts/oldest_jupyter.sh $(TEST)/python
	scripts/sdk_environments.sh $(TEST)/python
	$(TOGETHER) all-tests $(LINT)
	$(MAKE) matrix

# On a busy machine, the results are the same.
loaded:
	+@scripts/loaded.sh $(MAKE) --no-print-directory test

tests:
	@$(PYTEST) -m 'not release' $(PYTEST_ARGS)

all-tests:
	@$(PYTEST) $(PYTEST_ARGS)

unit-tests:
	@$(PYTEST) -m 'not (release or slow or $(subst $(empty) , or ,$(strip $(LIGHT))))' $(addprefix --without=,$(LIGHT)) $(PYTEST_ARGS)

# No time limit: there are more examples than in other runs, and a failing one is reduced to a simple one.
explore: test-environment
	$(TEST)/python -m pytest -m hypothesis --hypothesis-profile=explore --timeout=0 $(PYTEST_ARGS)
	$(TEST)/python -m pytest tests/fuzz --fuzz-inputs=100000 --timeout=0

# Fails if a Python is not installed.
matrix:
	@$(or $(PYTHON),python3) scripts/matrix.py $(PYTHONS)

dist: test-environment
	scripts/distributions.sh $(TEST)/python

lint: $(LINT)

style:
	@scripts/part.sh $@ sh -c '$(TEST)/ruff check --quiet && $(TEST)/ruff format --quiet --check && $(TEST)/python scripts/clocks.py'

types:
	@scripts/part.sh $@ $(TEST)/mypy

prose:
	@scripts/part.sh $@ $(TEST)/python scripts/prose.py

front-end:
	@scripts/part.sh $@ sh -c 'cd js && npm run --silent typecheck && npm run --silent test'

bench: test-environment
	@failed=; for name in $(BENCHMARKS); do echo "== $$name"; $(TEST)/python benchmarks/$$name.py || failed=1; done; [ -z "$$failed" ]

# Scores all measured runs in `validation` and writes the page: three minutes on two cores.
accuracy: test-environment
	$(TEST)/python benchmarks/accuracy.py --page docs/accuracy.md --readme README.md >/dev/null

results: test-environment
	$(TEST)/python benchmarks/regression.py

format: test-environment
	$(TEST)/ruff check --fix
	$(TEST)/ruff format

docs: test-environment
	$(TEST)/python -m sphinx --quiet --nitpicky --fail-on-warning --keep-going --jobs=auto --doctree-dir artifacts/doctrees docs site
	@echo 'open site/index.html'

pages: test-environment
	$(TEST)/python -m scripts.pages

notebooks: test-environment
	$(TEST)/python -m scripts.notebooks

pins: test-environment
	scripts/pins.sh $(TEST)/python

images: test-environment
	@$(TEST)/python scripts/containers.py --patches $(addprefix --day=,$(DAY))

clean:
	rm -rf .venv .venv-check $(addprefix .venv-,lab profile sagemaker tools) .venv-lab .venv-matrix .venv-sdk .venv-test artifacts dist site js/node_modules js/lib smp_advisor/static smp_advisor/labextension
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find smp_advisor tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

image: test-environment
	$(TEST)/python scripts/browser.py
	$(TEST)/python -m scripts.advisor_image

lab-environment:
	@scripts/environment.sh .venv lab build

test-environment:
	@scripts/environment.sh .venv-test lab,profile,sagemaker,tools dev

# The unit tests with one optional dependency.
extra:
	@scripts/environment.sh .venv-$(EXTRA) $(EXTRA) unit
	$(MAKE) unit-tests TEST=.venv-$(EXTRA)/bin

check-environment:
	@scripts/environment.sh .venv-check '' unit
