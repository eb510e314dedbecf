"""Qwen3 4B with a Python tool on DAPO-Math-17k: `experiment=python_tool`."""
