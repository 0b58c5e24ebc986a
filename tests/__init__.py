"""The test suite: unit, simulation, integration, Spark and fuzz tests, and what they share in `support`."""
