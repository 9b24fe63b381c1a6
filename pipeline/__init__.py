"""Spark pipelines: datasets, routing, aggregation, joins and streaming."""
