"""SmolLM2-135M-Instruct: the real model from an installed package, and an agent that gives it feedback in words."""
