"""Recording inside the profiled process: the child that runs the application, its spans, clocks and samples."""
