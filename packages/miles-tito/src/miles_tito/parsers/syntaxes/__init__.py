"""One file per family of call syntaxes; `formats.FORMATS` names them."""
