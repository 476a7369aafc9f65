"""Compare the run of several processes with a run of one."""
