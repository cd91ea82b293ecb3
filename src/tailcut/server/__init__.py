"""Open Inference Protocol over HTTP, lifecycle."""
