"""Instructions that a program can check: IFEval's 25 families and IFBench's 58, by their ids.

A check takes an answer and the instruction's own values; it measures as the published checkers do,
so that scores compare. What is ours alone stands in `words`: how sentences and tokens are split.
"""
