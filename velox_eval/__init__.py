"""Evaluation harness for KV-cache eviction on real MLX language models."""

__version__ = "0.1.0"
