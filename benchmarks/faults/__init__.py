"""Sets of faults, as data and as what plants them."""
