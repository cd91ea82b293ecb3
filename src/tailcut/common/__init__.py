"""What three packages or more use: units, SLOs, statistics, tensors, limits of values. Pure."""
