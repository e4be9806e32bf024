"""Tasks: their problems, prompts, rules and sampling."""
