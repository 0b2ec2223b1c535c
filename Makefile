# Sets up, tests and measures this checkout; `.venv/bin/trainyard --help` lists everything else. `trainyard local run --
# CMD` gives CMD the local node's environment (PATH with the toolchain, Pulumi's local backend, KUBECONFIG).

PYTHON ?= python3
PY := .venv/bin/python
# A GPU machine may have torch in its own Python, but no network to install .venv: make gpu PY=python3.
GPU_PY = $(if $(filter file,$(origin PY)),$(or $(wildcard $(PY)),$(PYTHON)),$(PY))
TRAINYARD := .venv/bin/trainyard

STACK = local
MARKS = cluster or engine

# Without .pyc files, each start compiles the modules of Pulumi and torch again, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help up down clean test e2e chaos bench gpu lint docs snapshots lock

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "%-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: .venv/infra.stamp  ## set up everything, train on this machine's node, follow the training to its end; STACK=local-sweep: four trainings
	@$(TRAINYARD) up --stack $(STACK) --yes
	@$(TRAINYARD) follow --stack $(STACK)

down: .venv/infra.stamp  ## destroy the local stack and stop the node, whose datasets, runs and caches stay in .local/; on another cluster its volume may be deleted too
	@$(TRAINYARD) down --stack $(STACK) --yes

clean: .venv/infra.stamp  ## ask (YES=1: do not), stop the node, and remove .local/ with the trained models, images and state, and Go's build caches
	@$(TRAINYARD) local down --all $(if $(YES),--yes)

test: .venv/dev.stamp  ## all fast tests
	@command -v rsync >/dev/null || $(PY) -c "from local import shell; shell.install(('rsync',))"
	@$(TRAINYARD) local toolchain etcd
	$(PY) -m pytest -m "not cluster and not engine" -n $$(($$(nproc) + 2)) --dist worksteal

e2e: .venv/dev.stamp  ## real node, real engine, real training (root); MARKS=engine: without a node
	@$(TRAINYARD) local toolchain etcd kubernetes kubernetes-1.37
	@$(TRAINYARD) local toolchain
	$(PY) -m pytest -m "$(MARKS)" -p tests.by_resource -o timeout_func_only=true -n $$(($$(nproc) + 1)) \
	  $$(grep -lrE --include='test_*.py' 'mark\.(cluster|engine)' tests | sort)

chaos: .venv/dev.stamp  ## break a real rendezvous in every way, and beside torchrun; the tables go to bench/results/ (root)
	@$(TRAINYARD) local toolchain etcd
	$(PY) -m faults
	$(PY) -m bench.recovery

bench: .venv/dev.stamp  ## repeat the CPU benchmarks of the trainer and of `pulumi preview` in bench/results/ (2 idle cores, an hour)
	@$(TRAINYARD) local toolchain etcd
	for each in preview rendezvous trainer.prepare trainer.speed; do \
	  echo "== bench.$$each"; $(PY) -m bench.$$each || exit 1; done

gpu:  ## test and measure on this machine's GPU, 10 minutes at most: make gpu [STAGE=tests|speed|recipe] [PY=python3]
	@$(GPU_PY) -m bench.gpu --stage "$(STAGE)" $(ARGS)

lint: .venv/dev.stamp  ## check format, lint, import directions, workflows and types
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/lint-imports --no-cache
	.venv/bin/pyrefly check --output-format min-text
	@$(TRAINYARD) local toolchain actionlint
	$$($(PY) -c 'from local import toolchain; print(toolchain.program("actionlint"))')

docs: .venv/dev.stamp  ## regenerate the pictures and tables of README and docs/ from the code
	$(TRAINYARD) dev docs

snapshots: .venv/infra.stamp  ## regenerate tests/snapshots/: what each stack declares, for review
	$(TRAINYARD) dev snapshot --update

lock: .venv/infra.stamp  ## resolve requirements/*.in again, with hashes
	for name in dev infra trainer bootstrap; do \
	  .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet \
	    requirements/$$name.in $$(case $$name in dev) ;; *) echo --constraint requirements/dev.txt ;; esac) \
	    --output-file requirements/$$name.txt || exit 1; \
	done
	@sed -n '/^torch==/p' requirements/trainer.in | .venv/bin/uv pip compile --torch-backend cpu --no-deps --universal \
	  --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet --output-file requirements/torch-cpu.txt - \
	  || echo "requirements/torch-cpu.txt stays as it is: torch's index for processors cannot be reached"

.venv/infra.stamp: requirements/bootstrap.txt requirements/infra.txt cli/trainyard
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("error: $(PYTHON) is %d.%d; needs 3.11 or newer: make up PYTHON=/path/to/python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "error: $(PYTHON) has no venv: apt-get install python3-venv"; exit 1; }
	@test -x $(PY) || { echo "installing Pulumi's packages into .venv"; $(PYTHON) -m venv .venv; }
	@.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@.venv/bin/uv pip install --quiet --python $(PY) --require-hashes -r requirements/infra.txt
	@install -m 755 cli/trainyard .venv/bin/trainyard
	@touch $@

.venv/dev.stamp: requirements/dev.txt .venv/infra.stamp
	@.venv/bin/uv pip install --quiet --python $(PY) --require-hashes -r requirements/dev.txt
	@touch $@

