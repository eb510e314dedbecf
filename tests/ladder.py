"""Few strings of the embedded default: to make and read all 30,000 takes 2 CPU-seconds."""

FEW = ("data.prompts.count=40", "data.demonstrations.count=40")


def few_of(*overrides: str) -> tuple[str, ...]:
    """`overrides` that keep the default's data get few of its strings."""
    others = ("data=", "model=")
    return overrides if any(word.startswith(others) for word in overrides) else (*FEW, *overrides)
