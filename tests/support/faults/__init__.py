"""Faults to plant, backends that are wrong on purpose, and what a comparison has to say of them."""
