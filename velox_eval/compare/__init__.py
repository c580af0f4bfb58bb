"""Comparing stored runs: who is better, by how much, and whether these samples can tell. Imports no mlx."""
