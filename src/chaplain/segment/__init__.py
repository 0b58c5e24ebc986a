"""The one format on disk, pure over bytes: the runtime, the simulator and Spark share it."""
