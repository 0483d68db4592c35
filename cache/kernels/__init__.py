"""GPU kernels that store keys and values and attend to them, and the choice of one."""
