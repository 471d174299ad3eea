"""The OpenAI routes."""
