"""Attribution of each moment of a recorded request to one stage. Pure."""
