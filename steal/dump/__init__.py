"""The dump file: its format, the writer, the reader and recovery after a crash."""
