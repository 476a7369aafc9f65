"""`Program`: an exported model, with the mapping from module calls and FX nodes to the values of its graph."""
