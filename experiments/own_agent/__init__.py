"""An external agent: a program with the `openai` client and its own loop."""
