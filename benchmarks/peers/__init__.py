"""tailcut beside other model servers: one machine, one model, one run."""
