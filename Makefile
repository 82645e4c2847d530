# One command each: make setup | demo | test | cluster-test | bench | bench-start | bench-reward | bench-data | bench-convert |
# docs | lint | env-061 | env-vllm | env-bench | cluster-up | cluster-down | clean | help
#
# Two options for machines unlike the one that this was written on:
#   PYTHON=/path/to/python3.11   the interpreter of new environments (default: the first of 3.11, 3.12, 3.10 that runs).
#       setup and demo take each of them; test needs 3.11, for the other environments and the cluster's image.
#   PIP_INDEX_URL / PIP_EXTRA_INDEX_URL / PIP_FIND_LINKS   pip's own variables. The stacks pin torch==2.13.0 and install
#       it first and alone; many indexes serve CUDA builds (gigabytes) under that version: name an index of CPU builds there.

# pip before 23.1 builds sdists by setup.py, which needs a `wheel` package that a fresh venv lacks.
export PIP_USE_PEP517 := 1

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
.DEFAULT_GOAL := help

STACK    := singularity/stacks/cpu
WHEELS   := .cache/wheels/cpu
PIP      := pip --disable-pip-version-check --quiet
# pip compiles on one core and only while it installs; compileall uses all of them. Templates that packages ship as .py do
# not compile, which it reports by its exit code and pip ignores as well.
COMPILE  = $(1)/bin/python -m compileall -q -j 0 $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') >/dev/null 2>&1 || true

.PHONY: setup demo test cluster-test bench bench-start bench-reward bench-data bench-convert docs lint environments env-061 env-vllm env-bench cluster-up cluster-down clean help system-packages

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

setup: .venv/.toolkit  ## .venv: the toolkit in editable mode with the CPU stack (verl, Ray, Megatron)

demo: setup  ## the GRPO job on this machine: prepare, render, train on CPU, merge
	@mkdir -p demo; cd demo; export PATH="$(CURDIR)/.venv/bin:$$PATH"; \
	samples=../data_prep/samples/gsm8k; set -x; \
	python -m data_prep.convert $$samples/train.jsonl --test-file $$samples/test.jsonl --ground-truth question --out data; \
	python -m launch.render --template grpo --rehearse --job ../jobs/demo.yaml -o run_grpo.sh; \
	bash run_grpo.sh; \
	python -m launch.status

# Side by side, since pip works on one core.
environments:
	@pids=(); for each in setup env-061 env-vllm system-packages; do $(MAKE) --silent $$each & pids+=($$!); done; \
	code=0; for pid in $${pids[@]}; do wait $$pid || code=$$?; done; exit $$code

# In three parts: quick tests side by side, a file at a time; those that train, two at once, neighbours together since they
# share models that each process makes for itself; the cluster. Of pytest's codes, 5 says that PYTEST_ARGS chose no test
# of this part, 2 that it was interrupted, or that a file cannot be read.
test: environments lint  ## every test: lint, unit, engine (verl on CPU), cluster (Slurm + Apptainer)
	@worst=5; part() { \
	  code=0; .venv/bin/python -m pytest "$${@:2}" --part "$$1" || code=$$?; [[ $$code != 2 ]] || exit 2; \
	  if [[ $$code != 5 ]]; then worst=$$((worst == 5 || code > worst ? code : worst)); fi; \
	}; \
	part quick -n 2 $(PYTEST_ARGS) --dist loadfile; \
	part engine -n 2 $(PYTEST_ARGS) --dist worksteal; \
	part cluster $(PYTEST_ARGS) -n 0; \
	exit $$worst

cluster-test: setup system-packages  ## every cluster test, also those that take minutes
	@.venv/bin/python -m pytest tests/cluster $(PYTEST_ARGS)

bench:  ## all benchmarks, one after the other
	@worst=0; for part in bench-start bench-reward bench-data bench-convert; do $(MAKE) --no-print-directory $$part || worst=$$?; done; exit $$worst

bench-start: setup system-packages  ## how quickly a job starts: on the cluster beside other ways, and on 256 simulated nodes
	@bring_up=0; .venv/bin/python tests/bench/bring_up.py || bring_up=$$?; \
	.venv/bin/python tests/bench/rendezvous.py && exit $$bring_up

bench-reward: setup env-vllm env-bench  ## how quickly rewards are scored, beside Infinity, vLLM and others; about 14 minutes
	@.venv/bin/python tests/bench/reward/run.py $(BENCH_ARGS)

bench-data: setup  ## how quickly raw data is converted, beside pandas and datasets, and its memory; about 5 minutes, 8 GB
	@.venv/bin/python tests/bench/data/run.py $(BENCH_ARGS)

bench-convert: setup  ## how quickly a checkpoint is merged, beside verl's merger and cp, and its memory; about 3 minutes, 15 GB
	@.venv/bin/python tests/bench/convert/run.py $(BENCH_ARGS)

docs: setup  ## write the pages of docs/ that are made of the code: commands, the job, stacks
	@.venv/bin/python tests/docs/reference.py && .venv/bin/python tests/docs/stacks_page.py

lint: setup system-packages  ## ruff, mypy, shellcheck (scripts and a rendered job)
	@.venv/bin/python tests/lint.py

env-061: .envs/verl-0.6.1/.ready  ## .envs/verl-0.6.1: the environment of a verl 0.6.1 rehearsal

env-vllm: .envs/verl-vllm/.ready  ## .envs/verl-vllm: the environment of a rehearsal with vLLM's CPU build

env-bench: .envs/bench-infinity/.ready  ## .envs/bench-infinity: Infinity and a small real model, for bench-reward

cluster-up: setup system-packages  ## three Slurm nodes with Apptainer on this machine (root, Debian)
	@tests/cluster/up.sh

cluster-down:  ## end the nodes that cluster-up started; what was built stays
	@tests/cluster/down.sh

clean: cluster-down  ## remove environments, caches and what the cluster built
	@lab=$$(tests/cluster/lib/lab_dir.sh); echo "removing $$lab .venv .envs .cache"; rm -rf "$$lab" .venv .envs .cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Lint needs shellcheck and the cluster mmdebstrap. Only root on a Debian can have them; elsewhere the checks that need
# them say so and are counted as skipped.
system-packages:
	@tests/cluster/lib/system_packages.sh

.venv/bin/python:
	@python=$$(tests/cluster/lib/find_python.sh); echo "setup: .venv from $$python"; \
	"$$python" -m venv .venv

# Wheels are built once and serve .venv and the image of the test cluster, which has no network while it is built.
$(WHEELS)/.complete: $(STACK)/requirements.txt $(STACK)/requirements-nodeps.txt | .venv/bin/python
	@echo "setup: wheels of $(STACK) into $(WHEELS)"; mkdir -p $(WHEELS)
	@.venv/bin/$(PIP) wheel --wheel-dir $(WHEELS) --no-deps "$$(grep '^torch==' $(STACK)/requirements.txt)"
	@.venv/bin/$(PIP) wheel --wheel-dir $(WHEELS) --find-links $(WHEELS) -r $(STACK)/requirements.txt
	@.venv/bin/$(PIP) wheel --wheel-dir $(WHEELS) --no-deps -r $(STACK)/requirements-nodeps.txt
	@touch $@

.venv/.stack: $(WHEELS)/.complete
	@echo "setup: installing the stack into .venv"
	@.venv/bin/$(PIP) install --no-compile --no-index --find-links $(WHEELS) -r $(STACK)/requirements.txt
	@.venv/bin/$(PIP) install --no-compile --no-index --find-links $(WHEELS) --no-deps -r $(STACK)/requirements-nodeps.txt
	@$(call COMPILE,.venv)
	@touch $@

.venv/.toolkit: .venv/.stack pyproject.toml
	@echo "setup: installing the toolkit into .venv, editable"
	@.venv/bin/$(PIP) install --no-build-isolation -e '.[data,reward,convert,dev]'
	@touch $@

# What the pins of a stack have wheels for. The tests run on 3.11.
.envs/verl-0.6.1/.ready: PYTHONS = 3.10 3.11
.envs/verl-vllm/.ready: PYTHONS = 3.11 3.12
.envs/bench-infinity/.ready: PYTHONS = 3.11

.envs/%/.ready: singularity/stacks/cpu-%/requirements.txt singularity/stacks/cpu-%/requirements-nodeps.txt
	@python=$$(tests/cluster/lib/find_python.sh); wanted="$(PYTHONS)"; \
	version=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	if [[ " $$wanted " != *" $$version "* ]]; then \
	  echo "setup: .envs/$* needs Python $${wanted/ / or }, $$python is $$version; name one: PYTHON=/path/to/python3.11"; exit 1; \
	fi; \
	echo "setup: .envs/$* from $$python"; "$$python" -m venv .envs/$*
	@.envs/$*/bin/$(PIP) install --no-compile "$$(grep '^torch==' $<)"
	@.envs/$*/bin/$(PIP) install --no-compile -r $<
	@.envs/$*/bin/$(PIP) install --no-compile --no-deps -r $(<D)/requirements-nodeps.txt
	@$(call COMPILE,.envs/$*)
	@touch $@
