# Tandem in a container. CPU: docker build -t tandem .
# CUDA: docker build -t tandem --build-arg BASE=nvidia/cuda:13.0.0-runtime-ubuntu24.04 .
ARG BASE=python:3.12-slim
FROM ${BASE}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git make python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /tandem
COPY . .
RUN python3 -m venv .venv \
 && .venv/bin/python -m pip install --no-cache-dir --constraint constraints.txt --editable .
ENV PATH=/tandem/.venv/bin:$PATH OMP_WAIT_POLICY=PASSIVE
ENTRYPOINT ["python", "train.py"]
