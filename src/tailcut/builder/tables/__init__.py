"""Models on tables as ONNX: what the user's own object answers, in double where float32 would change answers."""
