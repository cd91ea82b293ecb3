"""What other tools are given to watch a server with."""
