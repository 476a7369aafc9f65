"""Find for each value of one run the value of another run that it is."""
