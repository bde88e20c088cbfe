# `make help` lists the targets. Each part of the project owns one file in mk/; what
# several of them need is set here, before they are read.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
VENV_PYTHON := $(VENV)/bin/python

# Stamps are rewritten when what they were installed from has changed.
CORE_STAMP := $(VENV)/.stamp-core
SETUP_STAMP := $(VENV)/.stamp-setup
RUNTIME_STAMP := $(VENV)/.stamp-runtime

include $(sort $(wildcard mk/*.mk))

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) \
	    | sort | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'
