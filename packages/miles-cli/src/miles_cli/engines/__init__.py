"""The engines a run can use: ours and SGLang, behind the same HTTP surface."""
