import re
from pathlib import Path


def test_the_example_of_the_readme_runs():
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert "assert" in code
    exec(compile(code, "README.md", "exec"), {})
