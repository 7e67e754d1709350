# Two commands: `make run` shows the project on a real model, `make test` runs every test.
# Both install what they need (scripts/setup.sh), are idempotent, and can be interrupted.
DEFAULT_MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
DEFAULT_DOCUMENT := /usr/share/doc/jargon-text/jargon.txt.gz
MODEL ?= $(DEFAULT_MODEL)
DOCUMENT ?= $(DEFAULT_DOCUMENT)
JOBS ?= $(shell nproc)
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

.PHONY: help build run test test-unit test-asan test-clang lint format clean
help:
	@echo "make run        generate from a real model on a real document, dense beside FFD"
	@echo "make test       lint, build (g++, clang, sanitizers) and run every test"
	@echo "make build      build/longdecode and the library"
	@echo "make lint       format, include-direction and file-length checks"
	@echo "make format     clang-format every source in place"
	@echo "make clean      remove the build folders"
	@echo "variables       MODEL=file.gguf DOCUMENT=file.txt[.gz] of make run, JOBS=n of every build"

build:
	@scripts/setup.sh build
	cmake --preset release $(LAUNCHER) >/dev/null
	cmake --build --preset release -j $(JOBS)

run:
	@scripts/setup.sh run $(if $(filter $(DEFAULT_MODEL),$(MODEL)),model) \
	  $(if $(filter $(DEFAULT_DOCUMENT),$(DOCUMENT)),document)
	cmake --preset release $(LAUNCHER) >/dev/null
	cmake --build --preset release -j $(JOBS) --target longdecode_cli
	python3 scripts/run_demo.py --binary build/longdecode --model $(MODEL) --document $(DOCUMENT)

test: lint test-unit test-asan test-clang

test-unit: build
	@scripts/setup.sh test
	ctest --test-dir build --output-on-failure -j $(JOBS)

# The unit tests and small cases of the op tests under address and undefined sanitizers.
test-asan:
	@scripts/setup.sh test
	cmake --preset asan $(LAUNCHER) >/dev/null
	cmake --build --preset asan -j $(JOBS)
	LONGDECODE_TEST_QUICK=1 ctest --test-dir build-asan --output-on-failure -j $(JOBS) -LE slow

test-clang:
	@scripts/setup.sh test
	cmake --preset clang $(LAUNCHER) >/dev/null
	cmake --build --preset clang -j $(JOBS)

lint:
	@scripts/setup.sh test
	scripts/lint.py

format:
	git ls-files '*.h' '*.cc' '*.c' '*.cu' '*.cuh' | xargs clang-format-14 -i

clean:
	rm -rf build build-asan build-clang
