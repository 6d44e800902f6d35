"""The plan on screen: moves of its settings with what follows from them, and summaries of changes."""
