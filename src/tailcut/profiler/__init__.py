"""Where a service's milliseconds go: an application under the load generator, a deployment, a URL."""
