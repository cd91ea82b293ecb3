"""Open Inference Protocol v2: requests and replies, tensors in JSON or binary. No I/O."""
