"""What runs inside the peers' own environments: one file per peer, none of which imports tailcut."""
