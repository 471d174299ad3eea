"""Tokenizer, chat template, incremental detokenizer and stop strings."""
