"""The replicated state machine: agreed messages become offsets, refusals, lanes and configuration."""
