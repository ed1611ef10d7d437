# Everything runs from .venv in this folder; `make` alone lists the targets.
PYTHON := python3
BIN := .venv/bin
INSTALLED := .venv/.installed
GENERATED := specdec/v1/.generated
PROTOS := $(wildcard protos/specdec/v1/*.proto)
REQUIREMENTS := requirements/lock.txt requirements/torch.txt requirements/files.txt
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps

# Target and draft by name (deploy/pairs.py): smollm2 or qwen2.5-coder.
PAIR := smollm2
# In place of the pair's: a hub id (owner/name@revision), a folder, a GGUF file, embedded:smollm2, synthetic:…, or
# layers:N:MODEL for the first N layers of MODEL. A draft may also be lookup: or lookup:MODEL; with TARGET alone it is lookup:.
TARGET :=
DRAFT :=
MODELS = --pair "$(PAIR)" $(if $(TARGET),--target "$(TARGET)") $(if $(DRAFT),--draft "$(DRAFT)")
# pair, overhead, load, wire or pass_cost. Models are passed on only when named: each has its own, some take none.
BENCH := pair
BENCH_MODELS = $(if $(filter file,$(origin PAIR)),,--pair "$(PAIR)") $(if $(TARGET),--target "$(TARGET)") $(if $(DRAFT),--draft "$(DRAFT)")
BENCH_FLAGS :=
FUZZ_SECONDS := 30
PROMPT :=
export PROMPT
# One thread a process: the tests run several at once.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
TEST_PROCESSES := 2
PYTEST := $(TEST_ENVIRONMENT) $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadgroup
PYTEST_FLAGS :=
CHAOS_FLAGS :=
COMPILE := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras \
	--no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host
SOAK_FLAGS :=

.DEFAULT_GOAL := help
.PHONY: help setup protos demo up down lint test verify chaos soak bench fuzz report lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) $(GENERATED) ## make .venv from the lock and generate the stubs

protos: $(GENERATED) ## generate specdec/v1 from protos/specdec/v1

demo: setup ## answer a prompt with the whole system, then end it (PAIR=… TARGET=… DRAFT=… PROMPT=…)
	@$(BIN)/python -m deploy.laptop demo $(MODELS) --prompt="$$PROMPT"

up: setup ## leave the system running on localhost:50051 (PAIR=… TARGET=… DRAFT=…)
	@$(BIN)/python -m deploy.laptop up $(MODELS)

down: setup ## end what `make up` started
	@$(BIN)/python -m deploy.laptop down

lint: setup ## ruff, mypy, buf, import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	$(BIN)/lint-imports

test: setup ## unit, integration, statistical and e2e tests (PYTEST_FLAGS=…)
	$(PYTEST) $(PYTEST_FLAGS)

verify: setup ## the long forms of the tests, and those of random examples with new ones
	$(PYTEST) -m "long or hypothesis" --hypothesis-profile=long $(PYTEST_FLAGS)

chaos: setup ## more than 200 faults under load (CHAOS_FLAGS="--seed N")
	@$(TEST_ENVIRONMENT) $(BIN)/python -m tests.chaos $(CHAOS_FLAGS)

soak: setup ## ten minutes of steady load; memory and all else that is held stays flat (SOAK_FLAGS="--seconds N --seed N")
	@$(TEST_ENVIRONMENT) $(BIN)/python -m tests.soak $(SOAK_FLAGS)

bench: setup ## measure: BENCH=pair, overhead, load, wire or pass_cost (PAIR=… TARGET=… DRAFT=… BENCH_FLAGS=…)
	@$(BIN)/python -m benchmarks "$(BENCH)" $(BENCH_MODELS) $(BENCH_FLAGS)

fuzz: setup ## let atheris look for bytes that break the codec or the text path (FUZZ_SECONDS=30 each)
	$(PIP_INSTALL) --only-binary :all: --require-hashes -r requirements/fuzz.txt
	@mkdir -p .run
	set -e; for target in codec text_path; do \
		$(TEST_ENVIRONMENT) $(BIN)/python -m tests.fuzz.$$target -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=.run/; done

report: setup ## render all recorded results as one page, .run/report.html
	@$(BIN)/python -m benchmarks.report

lock: setup ## pin again what pyproject.toml and requirements/lock.in ask for (LOCK_FLAGS=--upgrade)
	$(COMPILE) $(LOCK_FLAGS) --extra dev --output-file requirements/lock.txt pyproject.toml requirements/lock.in
	$(COMPILE) --constraint requirements/lock.txt --output-file requirements/coordinator.txt pyproject.toml
	$(COMPILE) --constraint requirements/lock.txt --output-file requirements/models.txt pyproject.toml requirements/lock.in

clean: ## end the system and remove all that was made but .venv
	@test ! -d .run || $(MAKE) --no-print-directory down
	rm -rf specdec/v1 .run build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# Torch is not hashed, and hash checking is all or nothing, so it has its own call. The last packages are built from
# source with the setuptools of the lock.
$(INSTALLED): $(REQUIREMENTS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=…")'
	@echo "installing into .venv; the first time takes some minutes"
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP_INSTALL) --require-hashes -r requirements/lock.txt
	$(PIP_INSTALL) -r requirements/torch.txt
	$(PIP_INSTALL) --no-build-isolation --require-hashes -r requirements/files.txt
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $@

$(GENERATED): $(PROTOS) $(INSTALLED)
	$(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)
	@touch $@
