# What a person types. Each target is one line that could be typed as well; `python -m local run -- CMD` gives CMD the local
# node's environment (PATH with the toolchain, Pulumi's local backend, KUBECONFIG).

PYTHON ?= python3
STACK ?= local
# The git ref that `make plan` compares with.
AGAINST ?= HEAD
PY := .venv/bin/python
# A machine with a GPU may have torch in its own Python and no network for .venv: make gpu PY=python3.
GPU_PY = $(if $(filter file,$(origin PY)),$(or $(wildcard $(PY)),$(PYTHON)),$(PY))
LOCAL := $(PY) -m local
# The local stack's environment for the local stack alone: another one has its own backend and kubeconfig.
RUN = $(if $(filter local,$(STACK)),$(LOCAL) run --)
FOLLOW = $(PY) -m cli.follow --before 'eval "$$($(LOCAL) env)"'
# The kubeconfig context of the local stack: only trainyard-local is a node of ours.
CONTEXT = $(shell sed -n 's/^ *context: *//p' Pulumi.local.yaml)

# Compiling the modules of Pulumi and torch anew at each start costs seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
STATE := .local/state/.pulumi/stacks/trainyard/local.json
.PHONY: help up node use follow upload fetch tensorboard status down destroy clean preview doctor cost snapshots test e2e engine plan policy image audit ready expired docker-login prove chaos bench gpu lint format lock docs snapshots doctor cost

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | column -t -s '|'

up: node  ## set up everything, train on this machine's node, follow the training to its end
	@$(LOCAL) run --phase "pulumi up" -- pulumi up --stack local --yes --skip-preview
	@$(LOCAL) run --phase training -- $(FOLLOW) --stack local
	@$(LOCAL) timings

node: .venv/infra.stamp  ## the toolchain, and the local Kubernetes node unless the stack names another context
	@$(LOCAL) up --context "$(CONTEXT)"
	@$(LOCAL) run -- pulumi stack select --create local

use: .venv/infra.stamp  ## make `make up` train on a cluster you have: make use CONTEXT=kind-kind REGISTRY=localhost:5001
	@$(LOCAL) up --context "$(CONTEXT)"
	@$(LOCAL) run -- pulumi stack select --create local
	@$(LOCAL) run -- pulumi config set --stack local --path cluster.context "$(CONTEXT)"
	@test -z "$(REGISTRY)" || $(LOCAL) run -- pulumi config set --stack local --path image.registry "$(REGISTRY)"
	@test -z "$(REGISTRY)" || $(LOCAL) run -- $(PY) -m infra.buildx "$(REGISTRY)"
	@test "$(CONTEXT)" != trainyard-local || for key in registry buildx; do \
	  $(LOCAL) run -- pulumi config rm --stack local --path image.$$key || exit 1; done

follow: .venv/infra.stamp  ## come back to a training that runs
	@$(RUN) $(FOLLOW) --stack $(STACK)

upload: .venv/infra.stamp  ## put files on the shared volume: make upload STACK=local FROM=corpus/ [TO=texts] (or s3://, gs://, https://)
	@$(RUN) $(PY) -m cli.upload --stack $(STACK) $(if $(TO),--to "$(TO)") "$(FROM)"

fetch: .venv/infra.stamp  ## bring a run to this machine: model, metrics, report: make fetch STACK=local [TO=folder]
	@$(RUN) $(PY) -m cli.fetch --stack $(STACK) $(if $(TO),--to "$(TO)")

tensorboard: .venv/infra.stamp  ## open a stack's TensorBoard in the browser
	@$(RUN) $(PY) -m cli.board --stack $(STACK)

status: .venv/infra.stamp  ## what of the local node runs
	@$(LOCAL) status

preview: node  ## what `make up` would change
	@$(LOCAL) run -- pulumi preview --stack local --diff

down: .venv/infra.stamp  ## destroy the local stack and stop the node; datasets, runs and caches stay in .local/
	@test ! -e $(STATE) || $(MAKE) --no-print-directory destroy
	@$(LOCAL) down

destroy: node
	@$(LOCAL) run -- pulumi destroy --stack local --yes --skip-preview
	@$(LOCAL) run -- pulumi stack rm local --yes --preserve-config

clean: down  ## down, and remove .local/ with the trained models, images and state
	@$(LOCAL) down --all

test: .venv/dev.stamp  ## all fast tests
	@$(LOCAL) toolchain etcd actionlint
	$(PY) -m pytest -m "not cluster and not engine and not chaos" -n 2

e2e: .venv/dev.stamp .venv/policy.stamp  ## the real node, the real engine, the real training
	@$(LOCAL) toolchain pulumi pulumi-language-python
	$(PY) -m pytest -m "cluster or engine"

engine: .venv/dev.stamp .venv/policy.stamp  ## the tests with the real Pulumi engine, which need neither a node nor a cloud
	@$(LOCAL) toolchain pulumi pulumi-language-python
	$(PY) -m pytest -m engine

prove: .venv/infra.stamp  ## bring a stack up, try every claim on it, destroy it, with a report: make prove STACK=local [SHORT=1]
	@$(PY) -m prove --stack $(STACK) $(if $(SHORT),--short)

chaos: .venv/dev.stamp  ## break a real training in every way; the table goes to bench/results/chaos.md (root)
	@$(LOCAL) toolchain etcd
	$(PY) -m chaos

bench: .venv/dev.stamp  ## measure anew what bench/results/ holds of the trainer and of `pulumi up` (root, 2 idle cores, 2 hours)
	for each in graph preview trainer.prepare trainer.attention trainer.head trainer.startup trainer.checkpoint trainer.scaling trainer.speed; do \
	  echo "== bench.$$each"; $(PY) -m bench.$$each || exit 1; done

gpu:  ## test and measure on this machine's GPU, 8 minutes a stage: make gpu STAGE=tests|speed|attention|head|memory|profile [PY=python3]
	@$(GPU_PY) -m bench.gpu --stage "$(STAGE)" $(ARGS)

lint: .venv/dev.stamp  ## format, lint, imports in one direction, workflows and types
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/lint-imports --no-cache
	@$(LOCAL) toolchain actionlint
	$$($(PY) -c 'from local import toolchain; print(toolchain.program("actionlint"))')
	.venv/bin/pyright

format: .venv/dev.stamp  ## format, and fix what the linter can
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

docs: .venv/dev.stamp  ## write the pictures and tables of README and docs/ anew from the code
	$(PY) -m review.docs
	$(PY) -m trainer.reference

snapshots: .venv/infra.stamp  ## write tests/snapshots/ anew: what each stack declares, for review
	$(PY) -m review.snapshot --update

plan: .venv/infra.stamp  ## what this checkout changes in the cloud, without credentials: make plan AGAINST=origin/main
	@$(PY) -m review.plan --against "$(AGAINST)"

policy: .venv/policy.stamp node  ## a preview of the local stack, held to the policy pack
	@$(LOCAL) run -- pulumi preview --stack local --policy-pack policy

image: .venv/infra.stamp  ## push the trainer's image with SBOM and provenance, for image.ref: make image REGISTRY=ghcr.io/you
	@test -n "$(REGISTRY)" || { echo "error: REGISTRY is missing; give where you may push to: make image REGISTRY=ghcr.io/you"; exit 2; }
	@set -e; set -- $$($(PY) -m infra.image trainer); \
	  docker buildx build --platform linux/amd64 --sbom=true --provenance=mode=max --push \
	    --file "$$1/trainer/Dockerfile" --tag "$(REGISTRY)/$$2" "$$1"; \
	  docker buildx imagetools inspect "$(REGISTRY)/$$2"

audit: .venv/dev.stamp  ## known vulnerabilities of what is locked: a report
	@for name in infra trainer policy; do echo "requirements/$$name.txt:"; \
	  .venv/bin/pip-audit --require-hashes --disable-pip --progress-spinner off --requirement requirements/$$name.txt \
	    || failed=1; done; exit $${failed:-0}

ready: .venv/infra.stamp .venv/policy.stamp  ## the environments of the program and of the policy pack

reached: .venv/infra.stamp  ## does this machine reach a stack's cluster, as a workflow's runner has to: make reached STACK=aws-g4dn
	@$(PY) -m cli.deploy reach $(STACK)

settle: .venv/infra.stamp  ## end what a cancelled workflow has begun; it leaves no locked stack
	@$(PY) -m cli.deploy settle $(STACK)

expired: .venv/infra.stamp  ## stacks whose cluster.ttlHours are over
	@$(PY) -m cli.expired

docker-login: .venv/infra.stamp  ## let Docker push to a stack's registry; AWS's is logged into by the program itself
	@case $(STACK) in gcp-*) gcloud auth configure-docker --quiet \
	  $$(sed -n 's/^ *zone: *\(.*\)-[a-z] *$$/\1/p' Pulumi.$(STACK).yaml)-docker.pkg.dev;; esac

doctor: .venv/infra.stamp  ## check what a stack needs before `pulumi up`: make doctor STACK=gcp-a100
	@$(PY) -m infra.doctor $(STACK)

cost: .venv/infra.stamp  ## what a stack costs per hour by list prices: make cost STACK=gcp-a100
	@$(PY) -m infra.cost $(STACK)

lock: .venv/infra.stamp  ## resolve requirements/*.in again; hashes, no addresses
	for name in dev infra trainer bootstrap policy; do \
	  .venv/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet \
	    requirements/$$name.in $$(case $$name in dev|policy) ;; *) echo --constraint requirements/dev.txt ;; esac) \
	    --output-file requirements/$$name.txt || exit 1; \
	done

.venv/infra.stamp: requirements/bootstrap.txt requirements/infra.txt
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "error: $(PYTHON) must be Python 3.11 or newer with venv (Debian: apt-get install python3-venv); or PYTHON=/path/to/python3"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@.venv/bin/uv pip install --quiet --python $(PY) --require-hashes -r requirements/infra.txt
	@touch $@

.venv/dev.stamp: requirements/dev.txt .venv/infra.stamp
	@.venv/bin/uv pip install --quiet --python $(PY) --require-hashes -r requirements/dev.txt
	@touch $@

# Of its own: pulumi-policy wants an older protobuf. Pulumi lists its packages with pip.
.venv/policy.stamp: requirements/policy.txt .venv/infra.stamp
	@.venv/bin/uv venv --quiet --seed --clear --python $(PY) .venv/policy
	@.venv/bin/uv pip install --quiet --python .venv/policy/bin/python --require-hashes -r requirements/policy.txt
	@touch $@
