"""What a layer holds as a weight matrix: any format with `splits`, `sequence` and `step`."""

from tr.nn.formats.dense import Dense
from tr.nn.formats.int4 import Int4

Matrix = Dense | Int4
