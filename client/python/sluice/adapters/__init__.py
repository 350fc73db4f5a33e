"""What joins a stream to a library's models."""
