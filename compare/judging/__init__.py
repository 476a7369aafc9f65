"""Judge the values of a run by an ordered list of rules."""
