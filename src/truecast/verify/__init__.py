"""Judging checkpoints by reading them back: `verify` holds two against each other, `check` looks at one."""
