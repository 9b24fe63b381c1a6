"""Heuristic partitioners, one module each."""
