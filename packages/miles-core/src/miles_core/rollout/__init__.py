"""From prompts to judged groups: generate functions and the synchronous loop."""
