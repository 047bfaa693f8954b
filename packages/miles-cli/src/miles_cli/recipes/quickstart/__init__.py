"""The quickstart: an agent with a calculator, its problems, and the tiny model that starts from demonstrations."""
