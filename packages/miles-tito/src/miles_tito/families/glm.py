"""GLM-4.7 and GLM-5: a turn has no end of its own, the model stops on the opener of whoever speaks next."""

from miles_tito.families.family import Family

_STOPS = ("<|user|>", "<|observation|>", "<|endoftext|>")

GLM_4_7 = Family(
    name="glm-4.7",
    format="glm47+think",
    stops=_STOPS,
    template_kwargs={"clear_thinking": False},
    engine_tool_parser="glm47",
    engine_reasoning_parser="glm45",
)
GLM_5 = Family(
    name="glm-5",
    format="glm47+think",
    stops=_STOPS,
    template_kwargs={"clear_thinking": False},
    engine_tool_parser="glm47",
    engine_reasoning_parser="glm45",
)
