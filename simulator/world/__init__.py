"""The simulated world: virtual time, machines, clocks, disks and the network between them."""
