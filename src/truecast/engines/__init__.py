"""What runs inside an inference engine's own process."""
