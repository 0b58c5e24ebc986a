"""The drill: injects faults into a cluster under load, and checks what its clients saw against the guarantees."""
