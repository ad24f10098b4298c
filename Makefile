# Everything a developer types. `make` alone lists the targets.

BIN := .venv/bin
SHELL_FILES := $(wildcard harness/*.sh scripts/*.sh) .ci/run
PACKAGES := git e2fsprogs mmdebstrap debian-archive-keyring
PODMAN := podman catatonit runc
COMPILER := gcc libc6-dev
# Containers share one engine and measure its time and space, so their tests take turns.
SIDE_BY_SIDE := --numprocesses auto --dist worksteal
ENGINE_TESTS := tests/contract tests/integration tests/e2e
.DEFAULT_GOAL := help
.PHONY: help demo demo-audit demo-mls demo-tofu test check bench faults soak agents setup lock clean everything campaign soaking exploring
MAKEFLAGS += --no-print-directory

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1 /p' $(MAKEFILE_LIST) | while read -r name what; do printf '%-8s %s\n' "$$name" "$$what"; done

# demo.sh TASK "IMAGES" EXPLORE-OPTION...: whole jobs, from an agent to a verified receipt
DEMO = scripts/debian_packages.sh $(PACKAGES) || echo "going on without"; scripts/with_engine.sh scripts/demo.sh

demo: setup  ## set up, then the main job on digits_class0 with a scripted agent
	@$(DEMO) digits_class0 "cpu-numpy prepare-sklearn" --agent scripted --model none

demo-audit: setup  ## the same on unlearning_security_audit: a recorded model answers, and what it answered is run
	@$(DEMO) unlearning_security_audit "cpu-numpy torch-cpu" --agent answer --model recorded/tasks/unlearning_security_audit/demo.jsonl

demo-mls: setup  ## the same on mls_unlearning: a recorded model edits, tests and submits, without a key
	@$(DEMO) mls_unlearning "torch-cpu prepare-sklearn" --agent editor --model recorded/tasks/mls_unlearning/demo.jsonl

demo-tofu: setup  ## the same on tofu_mini: a scripted agent tries ideas on a tiny language model
	@$(DEMO) tofu_mini "hf-cpu" --agent scripted --model none

test: setup  ## every check and every test, those against a real engine included
	@scripts/debian_packages.sh $(PACKAGES) $(PODMAN) $(COMPILER) shellcheck || echo "tests that need them are skipped"
	@scripts/with_engine.sh $(MAKE) everything

everything: check
	$(BIN)/orch images build
	$(BIN)/orch images build hf-cpu || { [ $$? = 75 ] && echo "its wheels cannot be had; tests that need it are skipped"; }
	$(BIN)/pytest $(SIDE_BY_SIDE) -m "not docker" $(ENGINE_TESTS)
	$(BIN)/pytest -m docker $(ENGINE_TESTS)

check: setup  ## format, lint, types, import contracts, unit and property tests; needs no engine
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@scripts/debian_packages.sh shellcheck || echo "shellcheck is skipped"
	if command -v shellcheck > /dev/null; then shellcheck $(SHELL_FILES); fi
	$(BIN)/pytest $(SIDE_BY_SIDE) tests/unit tests/property

bench: setup  ## the whole pipeline against the same number of bare containers
	@scripts/with_engine.sh $(BIN)/python scripts/bench.py

faults: setup  ## every fault at every event of a run, against a real engine, as root; half an hour
	@scripts/debian_packages.sh $(PACKAGES) || echo "going on without"
	@scripts/with_engine.sh $(MAKE) campaign

campaign:
	$(BIN)/orch images build
	$(BIN)/orch task prepare digits_class0
	$(BIN)/python -m tests.faults

agents: setup  ## every agent from a registry on a whole task, offline, with a mock for a model
	@scripts/debian_packages.sh $(PACKAGES) || echo "going on without"
	@scripts/with_engine.sh $(MAKE) exploring

exploring:
	$(BIN)/orch images build cpu-numpy prepare-sklearn
	ORCH_TEST_AGENTS=all $(BIN)/pytest tests/e2e/test_real_agents.py

soak: setup  ## twenty minutes of jobs beside one long replay, against a real engine: what grows?
	@scripts/debian_packages.sh $(PACKAGES) || echo "going on without"
	@scripts/with_engine.sh $(MAKE) soaking

soaking:
	$(BIN)/orch images build cpu-numpy
	$(BIN)/python -m tests.soak

setup:  ## make .venv from the locked requirements
	@scripts/setup.sh

lock: setup  ## refresh every lock to the newest releases that fit
	@scripts/lock.sh

clean:  ## remove what was built; runs, assets and images stay
	rm -rf .venv build dist .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
