"""How control tokens are spelled in the field: for templates that are read without the vocabulary they belong to."""

import re

CONTROL_FORM = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜<>\s]{1,40}｜>"  # <|im_end|> and its full-width kin
    r"|<\|/?[a-z_]{1,40}>|<[a-z_]{1,40}\|>"  # <|turn>, <turn|>
    r"|</?s>|\[/?[A-Z][A-Z_]{2,40}\]|\[gMASK\]|<sop>"
    r"|<(?:start|end)_of_[a-z_]{1,40}>|<seed:[a-z_]{1,40}>"
    r"|\]~!?b[\]\[]|\[e~\["
)
"""A special token as some family spells it."""
