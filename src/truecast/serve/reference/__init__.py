"""An OpenAI-compatible server on the reference model: to try a converted checkpoint, and for tests to talk to."""
