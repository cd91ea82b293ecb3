"""The life of a deployment: loading, promotion, fallback, what operators see."""
