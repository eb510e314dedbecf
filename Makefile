# `make train` and `make test` do everything on a machine that has only Python 3.11 or newer.
# Take another interpreter with `make train PYTHON=python3.12`, another place with VENV=...

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
NEWEST := build/newest
# What Python compiles it keeps, whatever the environment says: hundreds of processes start here.
RUN := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python

train: $(VENV)/trains ## train the embedded default; ARGS="algorithm=dapo seed=1" for another
	$(RUN) train.py $(ARGS)

test: $(VENV)/ready ## lint, then run the quick tests; ARGS="-m slow" for the long ones
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(RUN) -m pytest --numprocesses=auto --maxprocesses=8 --dist=loadfile --no-loadscope-reorder $(ARGS)

rounding: $(VENV)/ready ## the tests of forward passes, as on a CPU that rounds few rows otherwise
	PYTHONPATH=tests $(RUN) -m pytest -p row_rounding tests/policies tests/test_decoupled_loop.py

exhaustive: $(VENV)/bench build/vllm/ready build/openenv/ready build/agents/ready ## all that is too long for the gate, into docs/status.md; ARGS="kills parity" for some
	$(RUN) benchmarks/exhaustive.py $(ARGS)

engines: $(VENV)/ready build/vllm/ready ## train on the samples of a real vLLM (for the CPU), alone and on two ranks
	$(RUN) benchmarks/exhaustive.py engines

status: $(VENV)/ready ## write docs/status.md anew: which results are older than the code
	$(RUN) benchmarks/exhaustive.py --page

laws: $(VENV)/ready ## write docs/laws.md: what holds of which algorithm
	PYTHONPATH=tests $(RUN) -m laws

legality: $(VENV)/ready ## write docs/legality.md: which functions make sense of tokens, steps, pictures
	PYTHONPATH=tests $(RUN) -m legality

matrix: $(VENV)/ready ## write docs/matrix.md: which algorithm trains which model, under which dynamics
	PYTHONPATH=tests $(RUN) -m matrix

families: $(VENV)/ready ## write docs/families.md: families of flow models beside their own pipelines
	PYTHONPATH=tests $(RUN) -m families

forwards: $(VENV)/ready ## write docs/forwards.md: how often an update asks the transformer
	PYTHONPATH=tests $(RUN) -m forwards

waits: $(VENV)/ready ## write benchmarks/results/waits.md: where runs wait for their device; ARGS="grpo ppo" for some
	PYTHONPATH=tests $(RUN) -m device_runs $(ARGS)

faults: $(VENV)/ready ## write the table of docs/rewards.md: what comes of a reward that fails
	PYTHONPATH=tests $(RUN) -m faults

kills: $(VENV)/ready ## kill 20 runs of tokens and 20 of pictures at random, and say how many went on bit for bit
	PYTHONPATH=tests nice -n 19 $(RUN) -m kills $(ARGS)

build/vllm/ready: tests/policies/engines/real_vllm.py
	rm -rf build/vllm
	PYTHONPATH=tests/policies/engines $(PYTHON) -m real_vllm build/vllm
	touch $@

build/openenv/ready: tests/environments/real_openenv.py
	rm -rf build/openenv
	PYTHONPATH=tests/environments $(PYTHON) -m real_openenv build/openenv
	touch $@

build/agents/ready: tests/environments/real_agents.py
	rm -rf build/agents
	PYTHONPATH=tests/environments $(PYTHON) -m real_agents build/agents
	touch $@

docs: $(VENV)/ready ## build the documentation site into build/site, warnings are errors
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=docs $(RUN) -m mkdocs build --quiet --strict

serve_docs: $(VENV)/ready ## show the site at 127.0.0.1:8000 and build it anew as its pages change
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=docs $(RUN) -m mkdocs serve

shown: $(VENV)/ready ## write into the pages the files and tables that they show
	PYTHONPATH=docs $(RUN) -m generate.tables

picture: $(VENV)/ready ## draw docs/assets/both_learn.svg from benchmarks/results/algorithms.json
	PYTHONPATH=docs $(RUN) -m generate.both_learn

report_pictures: $(VENV)/ready ## draw experiments/*/report.png from the reports beside them, with a Chromium
	for report in experiments/*/report; do \
	  PYTHONPATH=tests $(RUN) -m compare.picture $$report/report.html $$report.png || exit; \
	done

constraints: $(NEWEST) ## write constraints.txt: the newest versions that pyproject.toml admits
	PYTHONPATH=tests $(NEWEST)/bin/python -m constraints

stale: $(NEWEST) ## what constraints.txt has that a fresh install would not take
	PYTHONPATH=tests $(NEWEST)/bin/python -m constraints --stale

.PHONY: $(NEWEST)
$(NEWEST):
	$(PYTHON) -m venv --clear $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,openenv,gymnasium,ocr]"

# What tests need holds what training needs: either of the two may come first. Python compiles what
# it imports and nothing else.
$(VENV)/trains: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints.txt --editable .
	touch $@

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --constraint constraints.txt --editable ".[dev]"
	touch $(VENV)/trains $@

$(VENV)/bench: $(VENV)/ready
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable ".[dev,bench,openenv,gymnasium,ocr,torchao,reasoning-gym]"
	touch $@

.PHONY: engines docs serve_docs picture report_pictures constraints stale train test rounding exhaustive status laws legality matrix families forwards waits faults kills
