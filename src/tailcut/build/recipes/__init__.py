"""One file per recipe: how a variant is made. Each runs in a child process of the builder."""
