# Two commands: `make run` shows the project on a real model, `make test` runs every test.
# Both install what they need (scripts/setup.sh), are idempotent, and can be interrupted.
DEFAULT_MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
DEFAULT_DOCUMENT := /usr/share/doc/jargon-text/jargon.txt.gz
MODEL ?= $(DEFAULT_MODEL)
DOCUMENT ?= $(DEFAULT_DOCUMENT)
JOBS ?= $(shell nproc)
LAUNCHER = $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

.PHONY: help build run test test-unit test-asan test-clang fuzz lint format clean
help:
	@echo "make run        generate from a real model on a real document, dense beside FFD"
	@echo "make test       lint, build (g++, clang, sanitizers), run every test, fuzz"
	@echo "make test-unit  build with g++, run its tests: the quick part of make test"
	@echo "make build      build/longdecode and the library"
	@echo "make fuzz       fuzz the readers of untrusted files, FUZZ_SECONDS=60 each"
	@echo "make lint       format, include-direction and file-length checks"
	@echo "make format     clang-format every source in place"
	@echo "make clean      remove the build folders"
	@echo "variables       MODEL=file.gguf DOCUMENT=file.txt[.gz] of make run, JOBS=n of every build,"
	@echo "                LONGDECODE_TEST_QUICK=1 of make test-unit: smaller cases"

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

test: lint test-unit test-asan test-clang fuzz

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

# Both targets at once, FUZZ_SECONDS each, from small well-formed files; what breaks one stays in
# build-fuzz/. The time limit of one input is far above what any takes: a busy machine is no finding.
FUZZ_SECONDS ?= 60
fuzz:
	@scripts/setup.sh test
	cmake --preset fuzz $(LAUNCHER) >/dev/null
	cmake --build --preset fuzz -j $(JOBS)
	build-fuzz/tests/fuzz/fuzz_corpus build-fuzz/corpus
	@$(MAKE) --no-print-directory --output-sync -j 2 fuzz-gguf fuzz-prompt_cache

fuzz-%:
	OMP_WAIT_POLICY=passive build-fuzz/tests/fuzz/$*_fuzz -max_total_time=$(FUZZ_SECONDS) \
	  -timeout=240 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	  -artifact_prefix=build-fuzz/$*- build-fuzz/corpus/$*

lint:
	@scripts/setup.sh test
	scripts/lint.py

format:
	git ls-files '*.h' '*.cc' '*.c' '*.cu' '*.cuh' | xargs clang-format-14 -i

clean:
	rm -rf build build-asan build-clang build-fuzz
