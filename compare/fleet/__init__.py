"""Run many comparisons in processes of their own, on this machine or a cluster, with a ledger to resume them."""
