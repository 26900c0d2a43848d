# Each target alone sets up everything it needs on a fresh machine.
VENV := .venv
PYTHON ?= python3
READY := $(VENV)/.ready

.PHONY: setup demo test test-slow lint docs site clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       train a first agent and look at it"
	@echo "make test       the tests (a few minutes)"
	@echo "make test-slow  the long ones: every method must learn"
	@echo "make lint       style and types"
	@echo "make docs       write the tables and figures of docs/ again from results/"
	@echo "make site       the documentation as a website in build/site, with every link checked"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@sh scripts/gl-libraries.sh
	$(PYTHON) -m venv $(VENV)
	@sh scripts/torch-cpu.sh $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup
	$(VENV)/bin/cclf demo

test: setup
	@sh scripts/browser.sh
	$(VENV)/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-slow: setup
	$(VENV)/bin/python -m pytest -n auto -m slow --timeout=3600

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

docs: setup
	$(VENV)/bin/cclf report results --out build/report.html --markdown $(shell grep -l '^<!-- table ' README.md docs/*.md)
	$(VENV)/bin/cclf plot results/minigrid --methods a2c re3 cclf re3+cclf --out docs/figures/minigrid.svg
	$(VENV)/bin/cclf plot results/minigrid --methods a2c curl cclf re3 re3+curl re3+cclf --profiles entropy-0.01 --out docs/figures/minigrid-controls.svg
	$(VENV)/bin/cclf plot results/curiosity --methods cclf cclf-even cclf-shuffled curl --tasks minigrid/Empty-16x16 minigrid/DoorKey-6x6 minigrid/DoorKey-8x8 --profiles entropy-0.01 entropy-0.001 --out docs/figures/curiosity.svg
	$(VENV)/bin/cclf plot results/drqv2 --published --out docs/figures/drqv2.svg
	$(VENV)/bin/cclf plot results/dmc --methods rad drq curl curl+ cclf cclf-shuffled --tasks dmc/cartpole-swingup --profiles released-bf16 --out docs/figures/dmc.svg
	$(VENV)/bin/python scripts/docs_figures.py # shuffled.svg, atari.svg, dmc-tasks.svg

site: setup
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist *.egg-info
