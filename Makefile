# make chat                        build what is missing, open the chat; the first time downloads SmolLM2 135M, 98 MB
# make chat MODEL=path/to/model    the same with another model; MODEL=builtin downloads nothing
# make test                        Rust and Python tests, at the same time, on what the repository holds
# make quick                       the fast Python tests
# make trust                       faults, each as often as ten minutes allow; docs/reliability.md is written from the results
# make trust TRUST=full            the same as often as that page says: hours; ONLY="batch-kill hostile" chooses
# make fuzz TARGET=gguf SECONDS=60    coverage-guided fuzzing of one reader of strangers' files; TARGET=files, TARGET=all: several
# make loom                        the thread pool in every order of its steps, within a bound: a minute
# make tsan                        kernels, and an engine that eight threads use, under ThreadSanitizer
# make asan                        kernels and whole generations on every instruction set under AddressSanitizer
# make mutants                     check that tests notice faults: 40 changes of one line (tests/mutants)
# make test-all                    the tests that need the extras: Ray, lm-evaluation-harness, llm, inspect_ai
# make test-oldest                 the quick tests with the oldest libraries that pyproject.toml allows, in .venv-oldest
# make differential                random models, texts, draws and tensors against other implementations: a few minutes
# make differential DIFFERENTIAL="--size night"    the same for a night; DIFFERENTIAL=--help says more
# make test-arm                    the Rust tests for 64-bit Arm, cross-compiled and run in an emulator (CONTRIBUTING.md)
# make wheel                       build the wheel for other machines into dist, and check it; on Linux for glibc 2.28, with zig
# make wheel-test                  the same, then install it without Rust and use it without the checkout and the network
# make sdist, make sdist-test      the source distribution; build it elsewhere and use what comes out
# make lint                        formats, warnings, types, stubs, spelling
# make train WORK=folder           train the built-in model again (about an hour on two cores); MODEL_CARD.md says more
# make shots                       take the pictures and recordings of the chat again, to docs/pictures
# make docs                        write the generated parts of docs/ again: keys, settings, commands, model types
# make site                        README and docs/ as a site in target/site/html, with mkdocs-material in .venv-site
# make notices                     write THIRD-PARTY-NOTICES.txt again, after a change of Cargo.lock
# make catalog                     check ropechat/models/catalog.toml against the Hub; CATALOG=--write notes the day
# make bench                       speed of this machine, on a random-weight model of SmolLM2-135M's shape
#
# Needs Python 3.11 or newer, a Rust toolchain and make. Everything is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLDEST := .venv-oldest
OTHERS := .venv-differential
SITE := .venv-site
PACKAGING := .venv-packaging
# maturin packs a folder of this name, and pip installs what is in its `data` below the environment.
DATA := ropechat.engine._core.data
# One worker more than cores, because tests that start programs wait for them.
WORKERS = --numprocesses $$($(PYTHON) -c "import os; print(os.cpu_count() + 1)") --dist worksteal
PYTEST = $(BIN)/python -m pytest $(WORKERS)
RUST := Cargo.toml Cargo.lock $(shell find rust -name Cargo.toml -or -path '*/src/*.rs')

# What maturin and clippy build against, whatever Python is active outside.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests start hundreds of programs, which would compile all of ropechat each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help chat test test-rust test-python quick trust fuzz loom tsan asan mutants test-all test-oldest differential test-arm wheel wheel-test sdist sdist-test manual lint train notices catalog bench shots docs site build format clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

chat: build
	@$(BIN)/ropechat chat $(if $(MODEL),-m "$(MODEL)",--first smollm2:135m)

# Both at the same time, the build beside what cargo compiles for tests: pytest reports as it goes on, cargo (on all cores:
# without the job server) when it ends.
test: $(VENV)/.maturin
	@$(MAKE) --no-print-directory --keep-going --jobs 2 test-rust test-python

test-rust: $(VENV)/.maturin
	@mkdir -p target
	@MAKEFLAGS= cargo test --workspace --quiet > target/test-rust.log 2>&1; code=$$?; cat target/test-rust.log; exit $$code

test-python: build $(VENV)/.dev
	$(PYTEST) -m "not extras"

quick: build $(VENV)/.dev
	$(PYTEST) -m "not slow and not extras"

TRUST = quick
trust: build $(VENV)/.dev
	$(BIN)/python tests/trust/run.py $(TRUST) $(ONLY) $(if $(RUNS),--runs $(RUNS))

# atheris brings libFuzzer for Python; the Rust targets need a C++ compiler.
fuzz: build $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --group fuzz
	$(BIN)/python tests/trust/fuzz.py $(or $(TARGET),all) --seconds $(or $(SECONDS),60)

loom:
	cd rust/kernels/loom && RUSTFLAGS="--cfg loom" cargo test --release --target-dir $(CURDIR)/target/loom

# Builds for minutes; only Linux on x86-64.
tsan: build $(VENV)/.dev
	$(BIN)/python tests/trust/sanitize.py thread $(if $(ROUNDS),--rounds $(ROUNDS))

asan: build $(VENV)/.dev
	$(BIN)/python tests/trust/sanitize.py address

mutants: build $(VENV)/.dev
	$(BIN)/python tests/mutants/run.py $(MUTANTS)

test-all: build $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --group extras
	$(BIN)/python -m pytest -m extras

test-oldest: build
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(OLDEST)/bin/python -m pip install --quiet --group dev $$($(BIN)/python tests/support/oldest.py)
	rm -rf dist
	$(BIN)/maturin build --release --out dist
	$(OLDEST)/bin/python -m pip install --quiet --no-deps --force-reinstall dist/*.whl
	$(OLDEST)/bin/python -m pytest $(WORKERS) -m "not slow and not extras"

differential: build $(OTHERS)/.installed
	$(OTHERS)/bin/python tests/differential $(DIFFERENTIAL)

$(OTHERS)/.installed: $(VENV)/.maturin pyproject.toml
	$(PYTHON) -m venv $(OTHERS)
	$(OTHERS)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(OTHERS)/bin/python -m pip install --quiet --group differential $$($(BIN)/python -c \
		"import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'])")
	@touch $@

test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER = aarch64-linux-gnu-gcc
test-arm: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER = qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu
test-arm:
	cargo test --workspace --target aarch64-unknown-linux-gnu

wheel: export PATH := $(CURDIR)/$(PACKAGING)/bin:$(PATH)
wheel: $(VENV)/.maturin manual
	rm -f dist/*.whl
	MAKEFLAGS= maturin build --release --locked --out dist $(if $(filter Linux,$(shell uname)),--zig --compatibility manylinux_2_28)
	python tests/packaging/check.py dist/*.whl

wheel-test: wheel
	$(PYTHON) tests/packaging/use.py dist/*.whl

sdist: manual
	rm -f dist/*.tar.gz
	$(PACKAGING)/bin/maturin sdist --out dist
	$(PACKAGING)/bin/python tests/packaging/check.py dist/*.tar.gz

# pip builds in a folder of its own below /tmp, from nothing but the archive.
sdist-test: sdist
	rm -rf target/sdist
	env -u PYO3_PYTHON -u VIRTUAL_ENV $(PACKAGING)/bin/python -m pip wheel --quiet --no-deps --wheel-dir target/sdist dist/*.tar.gz
	$(PYTHON) tests/packaging/use.py target/sdist/*.whl

manual: $(PACKAGING)/.installed
	rm -rf $(DATA)
	$(PACKAGING)/bin/python -c 'from ropechat.cli import entry; entry()' man --output $(DATA)/data/share/man/man1

$(PACKAGING)/.installed: pyproject.toml
	$(PYTHON) -m venv $(PACKAGING)
	$(PACKAGING)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(PACKAGING)/bin/python -m pip install --quiet --group wheel
	@touch $@

lint: build $(VENV)/.dev
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell *.md docs ropechat rust training/README.md tests/*.md tests/*/*.md
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest ropechat.engine._core

bench: build
	$(BIN)/ropechat bench --shape smollm2-135m --dtype bf16 --threads 1,2 $(BENCH)

notices:
	$(PYTHON) rust/notices.py

catalog: build
	$(BIN)/python tests/bench/catalog.py $(CATALOG)

docs: build
	$(BIN)/python tests/support/pages.py

site: $(SITE)/.installed
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python tests/support/docs_site.py

$(SITE)/.installed: pyproject.toml
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(SITE)/bin/python -m pip install --quiet --group site
	@touch $@

shots: build
	$(BIN)/python tests/support/shots.py $(SHOTS)

# Memory that is given back after each step is faulted in again: half of the time of a step.
train: export MALLOC_ARENA_MAX = 1
train: export MALLOC_MMAP_MAX_ = 0
train: export MALLOC_TRIM_THRESHOLD_ = 8000000000
train: $(VENV)/.train
	nice -n 19 $(BIN)/python -m training.train --work "$(WORK)" $(TRAIN)
	$(BIN)/python -m training.export --work "$(WORK)" --to "$(WORK)/model"

format: $(VENV)/.dev
	cargo fmt --all
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

build: $(VENV)/.built

# Only Rust sources and manifests need a build; Python files are used where they lie.
$(VENV)/.built: $(VENV)/.maturin pyproject.toml $(RUST)
	MAKEFLAGS= $(BIN)/maturin develop --release
	@touch $@

$(VENV)/.maturin:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' 'maturin>=1.9.4,<2'
	@touch $@

$(VENV)/.train: $(VENV)/.built
	$(BIN)/python -m pip install --quiet --group train
	@touch $@

$(VENV)/.dev: $(VENV)/.maturin pyproject.toml
	$(BIN)/python -m pip install --quiet --group dev
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(OTHERS) $(SITE) $(PACKAGING) $(DATA) dist target ropechat/engine/*.so
