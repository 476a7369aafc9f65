"""Find where one of two implementations leaves the other one."""
