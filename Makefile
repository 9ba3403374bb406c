# Every target sets up what it needs in .venv (once; a stamp file makes the second run quick).
#
#   make demo      train a policy on a live stream of demonstrations and evaluate it
#   make test      run every test tier
#   make bc-compare  train on live and on fixed data over five seeds, and compare (an hour; can be interrupted)
#   make lint type docs bench clean
#
# Variables: PYTHON  the interpreter for new environments (default: the first Python 3.11 or newer on PATH)
#            TORCH   what to install as torch, e.g. TORCH="torch==2.13.0+cpu" where the package index offers that build
#            ARGS    further arguments for demo, test, bench and bc-compare

SHELL := /bin/bash
.DELETE_ON_ERROR:

PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
    $(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
TORCH ?= torch==2.13.0
ARGS ?=

VENV := .venv
METAWORLD_VENV := .venv-metaworld
LEROBOT_VENV := .venv-lerobot
PY := $(VENV)/bin/python
METAWORLD_PY := $(METAWORLD_VENV)/bin/python
LEROBOT_PY := $(LEROBOT_VENV)/bin/python
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
RECIPE := pyproject.toml constraints.txt

.PHONY: demo test lint type docs bench bc-compare format api clean

demo: $(VENV)/demo.stamp
	$(PY) -m odstream demo $(ARGS)

# Pytest's exit code 5 means that a tier holds no test.
test: $(VENV)/dev.stamp $(METAWORLD_VENV)/dev.stamp $(LEROBOT_VENV)/dev.stamp
	$(METAWORLD_PY) -m pytest -m metaworld $(ARGS) || [ $$? -eq 5 ]
	$(LEROBOT_PY) -m pytest -m lerobot tests/integration/lerobot $(ARGS) || [ $$? -eq 5 ]
	$(PY) -m pytest -m "not metaworld and not lerobot" $(ARGS)

lint: $(VENV)/dev.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/lint-imports --no-logo

type: $(VENV)/dev.stamp
	$(PY) -m mypy

docs: $(VENV)/docs.stamp
	$(PY) -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(VENV)/dev.stamp
	@for file in benchmarks/bench_*.py; do \
	    echo "== $$file"; $(PY) "$$file" $(ARGS) || exit 1; \
	done

bc-compare: $(LEROBOT_VENV)/dev.stamp
	$(LEROBOT_PY) -m examples.ods.simple_bc_demo.compare --output runs/bc-compare $(ARGS)

format: $(VENV)/dev.stamp
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix-only .

api: $(VENV)/dev.stamp
	$(PY) -m tools.api_snapshot --write

clean:
	rm -rf $(VENV) $(METAWORLD_VENV) $(LEROBOT_VENV) .venv-bench docs/_build docs/conformance.md docs/reference/api build dist \
	    .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path "./.git/*" -prune -exec rm -rf {} +

# ---------------------------------------------------------------- environments

%/pyvenv.cfg:
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11 or newer on PATH; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Setting up $* with $$($(PYTHON) --version) (once; torch is the large part)"
	$(PYTHON) -m venv $*

$(VENV)/demo.stamp: $(RECIPE) | $(VENV)/pyvenv.cfg
	$(PY) $(PIP_INSTALL) "$(TORCH)" --editable ".[franka,plot]"
	@touch $@

$(VENV)/dev.stamp: $(VENV)/demo.stamp
	$(PY) $(PIP_INSTALL) "$(TORCH)" --editable ".[franka,plot,dev]"
	@touch $@

$(VENV)/docs.stamp: $(VENV)/dev.stamp
	$(PY) $(PIP_INSTALL) "$(TORCH)" --editable ".[franka,plot,dev,docs]"
	@touch $@

# Meta-World pins its own version of mujoco, so its tests have an environment of their own.
$(METAWORLD_VENV)/dev.stamp: $(RECIPE) | $(METAWORLD_VENV)/pyvenv.cfg
	$(METAWORLD_PY) $(PIP_INSTALL) "$(TORCH)" --editable ".[metaworld,dev]"
	@touch $@

# LeRobot's SDK without most of what it depends on (robots, policies, video): its tests read and write numbers. With the
# Franka task and plots, for the comparison of live and fixed data.
LEROBOT_NEEDS := datasets av jsonlines draccus einops termcolor packaging huggingface-hub pillow psutil pyyaml safetensors
$(LEROBOT_VENV)/dev.stamp: pyproject.toml constraints-lerobot.txt | $(LEROBOT_VENV)/pyvenv.cfg
	$(LEROBOT_PY) -m pip install --quiet --disable-pip-version-check --constraint constraints-lerobot.txt \
	    "$(TORCH)" --editable ".[franka,plot]" pytest pytest-timeout hypothesis $(LEROBOT_NEEDS)
	$(LEROBOT_PY) -m pip install --quiet --disable-pip-version-check --constraint constraints-lerobot.txt --no-deps \
	    lerobot accelerate torchvision
	@touch $@
