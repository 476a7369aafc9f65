"""Results of comparisons as frozen data, with their tables and file formats."""
