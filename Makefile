# lossfeed: every command does its own set-up. `make help` lists them.
# Fresh machine: cargo (with rustc), Python >= 3.11, g++ and the package registries; no GPU, no CUDA toolkit.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# JOBS   build and test processes at a time
# DATA   `make run`: a class-per-folder directory, a tar, or "shard-{000..007}.tar"; empty = bundled handwritten digits
# ARGS   `make run`: further options of `lossfeed train` (see `lossfeed train --help`); `make gpu`: the list to run;
#        `make test-integrations`: options of pytest
# TORCH  how pip names PyTorch; a smaller one without CUDA: TORCH="torch --extra-index-url URL_OF_ITS_CPU_WHEELS"
# MINUTES, SEED, ONLY, OUT  `make chaos`: how long; what it is drawn from (empty: a new one, printed); attacks, with commas (kills,
#        faults, datasets, losses, processes, files, formats, memory, fuzz, ptx; empty: all); the folder of its JSON
# PYTHONS `make packages`: the interpreters that try the wheels; empty = python3.11 to python3.14
# REPOSITORY  `make packages`: https://HOST/OWNER/NAME, for the addresses in a release's metadata
# PYTHON the interpreter to make .venv from; empty = the newest python3 >= 3.11 that is found
JOBS   ?= 2
DATA   ?=
ARGS   ?=
TORCH  ?= torch
PYTHON ?=
MINUTES ?= 10
SEED   ?=
ONLY   ?=
OUT    ?=
REPOSITORY ?=

export CARGO_BUILD_JOBS := $(JOBS)
export JOBS TORCH PYTHON REPOSITORY
VENV := .venv

.PHONY: help run test test-integrations chaos bench gpu gpu-bundle lint venv wheel docs packages clean

help: ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## train on digits (or DATA=PATH), policies side by side; ARGS="--seeds 3" for the spread, ARGS="--help" for all options
	@.ci/wheel demo
	@.ci/venv run
	@$(VENV)/bin/lossfeed train $(if $(DATA),--data '$(DATA)') $(ARGS)

test: ## everything: format, lints, cargo tests, wheel, Python tests, kernels, Dockerfile
	@.ci/test

test-integrations: ## the trainers' examples with Lightning, Accelerate, transformers, datasets, timm and Ray, in .venv-integrations; ARGS="-k lightning"
	@.ci/integrations $(ARGS)

lint: ## only the checks that run nothing: format, clippy, the house's arrows, Dockerfile
	@.ci/test lint

chaos: venv wheel ## attacks from a seed for MINUTES=10, a table and JSON under OUT (or dist/chaos); SEED=, ONLY=kills,faults; failures say how to repeat them
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python tests/chaos --minutes '$(MINUTES)' --jobs '$(JOBS)' --out '$(or $(OUT),dist/chaos)' \
	  $(if $(SEED),--seed '$(SEED)') $(if $(ONLY),--only '$(ONLY)')

bench: venv wheel ## what it costs: micro benchmarks and, with DATA=CIFAR_FOLDER, scenarios; results in benches/record
	@DATA=$(DATA) .ci/bench $(ARGS)

gpu-bundle: venv ## test program, wheel and peers in .gpu-bundle, for a GPU machine without cargo or network, tried; LOSSFEED_CIFAR=FOLDER adds CIFAR-10
	@.ci/gpu-bundle

gpu: ## what is true and what it costs on this machine's GPU, from .gpu-bundle; JSON and an archive under $$OUT (or dist/gpu); ARGS="first" (480 s), "rest", "first sweep", "--dry-run rest"
	@.ci/gpu $(ARGS)

venv: ## .venv with PyTorch and the build tools
	@.ci/venv run

wheel: venv ## the release wheel, built and installed into .venv (nothing happens when nothing changed)
	@.ci/wheel release

docs: ## the pages for users as a site, in dist/docs; dead links fail
	@.ci/wheel demo
	@$(VENV)/bin/python .ci/docs

packages: ## wheels for x86-64 and aarch64 and a source distribution in dist/packages, audited and tried; PYTHONS="python3.11 python3.14"; a release sets REPOSITORY=https://HOST/OWNER/NAME
	@.ci/packages

clean: ## forget .venv, wheels, bundles and cargo's output
	rm -rf $(VENV) .venv-integrations dist .gpu-bundle
	cargo clean
