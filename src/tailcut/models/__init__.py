"""Models: runtimes that run an artifact, executors that run batches, the pool and its dispatcher."""
