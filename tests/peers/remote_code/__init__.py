"""A model of Kimi-Linear's shape as a checkpoint brings it along: run by transformers in the tests, never by truecast."""
