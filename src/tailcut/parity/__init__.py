"""The same requests to the pilot and to the deployment: what differs, by how much, and why."""
