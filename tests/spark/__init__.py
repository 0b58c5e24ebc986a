"""Tests of the pipeline with a Spark session."""
