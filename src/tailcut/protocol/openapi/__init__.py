"""The description of the HTTP interface: /openapi.json and its page."""
