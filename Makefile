# The two commands that a newcomer needs: `make demo` and `make test`. Everything else is CMake (see CMakePresets.json).
.DEFAULT_GOAL := help
.PHONY: help demo test build portable bundle wheel deb docs install-packages install-test-packages lint format clean

# A compiler cache that survives moving the checkout.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1

help:
	@echo 'make demo          install, build and train Fashion-MNIST on 2 servers and 2 nodes x 2 ranks'
	@echo 'make test          install, build and run all tests, then unit and simulation tests under sanitizers'
	@echo 'make build         install and build everything (release), into build/release'
	@echo 'make bundle        build, and pack programs and libraries for other machines into build/tributary-VERSION*'
	@echo 'make wheel         the same, with the Python package, as a wheel for pip: build/tributary-VERSION-*.whl'
	@echo 'make deb           the same for Debian 11, Ubuntu 20.04 and newer: build/tributary_VERSION_ARCHITECTURE.deb'
	@echo 'make docs          the notes as a site, with a reference of Python and C: build/docs/site'
	@echo 'make lint          check all sources without a build, in seconds: C++, Python, shell, includes'
	@echo 'make format        clang-format every source file'
	@echo 'make clean         remove build/'

install-packages:
	@scripts/install_packages.sh

install-test-packages:
	@scripts/install_packages.sh packages_test.txt packages_lint.txt

build: install-packages
	cmake --preset release
	cmake --build --preset release

# Only what trains: tests and measurements would take three times as long; and code for GPUs only where there is one.
demo: install-packages
	@echo 'building what trains: some minutes on two cores, the first time'
	cmake --preset release -DTRIBUTARY_CUDA=$$(scripts/cuda_here.sh)
	NINJA_STATUS='[%f of %t steps, %e s] ' cmake --build --preset release --target tributary tributary-server tributary-worker tributary-train tributary_shared
	build/release/bin/tributary up configs/fashion-mnist.toml --servers 2 --nodes 2 --ranks-per-node 2 --fresh
	@scripts/next_steps.sh

portable: install-packages
	CMAKE_INCLUDE_PATH="$$(scripts/fetch_cuda_headers.sh $(CURDIR)/build/cuda-headers)" cmake --preset portable
	cmake --build --preset portable

bundle: portable
	scripts/make_bundle.sh

wheel: portable
	scripts/make_wheel.sh

deb: portable
	scripts/make_deb.sh

# exec: the last line must be the script's own.
test: install-test-packages
	@exec scripts/run_tests.sh

docs:
	@programs=$$(scripts/python_environment.sh docs) && NO_MKDOCS_2_WARNING=1 python3 scripts/make_docs.py "$$programs/mkdocs"

lint:
	@scripts/install_packages.sh packages_lint.txt
	@scripts/lint.sh

SOURCES = $(shell git ls-files --cached --others --exclude-standard '*.h' '*.c' '*.cc' '*.cu' '*.cuh')
format: install-packages
	clang-format -i $(SOURCES)

clean:
	rm -rf build
