"""Run many comparisons, here or in processes of their own on a machine or a cluster, with a ledger to resume them."""
