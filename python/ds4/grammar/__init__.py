"""Constrained decoding: a grammar says which tokens may come next.

`Grammar` is what the text must look like (a JSON value of a schema, tool calls in the model's own markup); `Constraint`
follows one completion and masks the logits. The work on grammars is done by llguidance (extra `server`).

Why llguidance and not xgrammar, both tried over the published vocabulary of 129,280 tokens:

=====================  =================================  ====================================================
.                      llguidance 1.9.1                   xgrammar 0.2.9
=====================  =================================  ====================================================
needs                  nothing; 7.6 MB, MIT               torch, transformers, triton: above 750 MB; Apache-2.0
vocabulary, once       0.25 s                             0.06 s, and 15 ms for the first schema
a schema               0.7 ms, a copy 0.03 ms             below 1 ms
a mask                 15 µs median, 0.1 ms at most       11 µs median, 0.1 ms at most
added tokens           kept apart from text, can be asked allowed inside strings (begin of sentence, pad, ...)
                       for by id
what it cannot do      an error that names the keyword    `allOf`, `not`, `if`, `uniqueItems`, `multipleOf` are
                                                          ignored in silence, `oneOf` becomes `anyOf`
=====================  =================================  ====================================================

The times are equal in effect; the other lines decide. A constraint that is ignored is worse than none, and the
protocol's tags hold an added token (`｜DSML｜`) that must stand in tags and nowhere else.
"""

from .constraint import Constraint, ConstraintError
from .grammar import Grammar
from .schema import MAX_DEPTH, MAX_ENUM, MAX_PROPERTIES, MAX_SCHEMA_BYTES, MAX_SUBSCHEMAS

__all__ = [
    "Constraint",
    "ConstraintError",
    "Grammar",
    "MAX_DEPTH",
    "MAX_ENUM",
    "MAX_PROPERTIES",
    "MAX_SCHEMA_BYTES",
    "MAX_SUBSCHEMAS",
]
