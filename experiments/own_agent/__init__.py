"""A foreign agent: a program with the `openai` client that owns its loop."""
