"""The stages of a request, compiled once when a deployment is loaded."""
