# Tandem in a container. CPU: docker build -t tandem .
# CUDA: docker build -t tandem --build-arg BASE=nvidia/cuda:13.0.0-runtime-ubuntu24.04 .
# Other extras of pyproject.toml: --build-arg EXTRAS=hub,math,liger,8bit
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG EXTRAS=hub,math
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc git libc6-dev make python3 python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /tandem
COPY . .
RUN python3 -m venv .venv \
 && .venv/bin/python -m pip install --no-cache-dir --constraint constraints.txt --editable ".[${EXTRAS}]"
ENV PATH=/tandem/.venv/bin:$PATH OMP_WAIT_POLICY=PASSIVE
ENTRYPOINT ["python", "train.py"]
