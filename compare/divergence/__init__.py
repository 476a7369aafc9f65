"""Find the operations at which one of two implementations leaves the other one."""
