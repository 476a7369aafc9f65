"""Compare many variants: models, dtypes and backends in a matrix, input sizes in a sweep."""
