"""What several tests share; nothing here is a test."""
