"""Text in, text out: python -m tr.generate prompt="Why is the sky blue?" [key=value ...]

`chat=false` continues the prompt as it stands; `stop='["\\n\\n"]'` ends the answer before any of
these strings. The last line says how many tokens a step gave.
"""

import sys

import torch

from tr import overrides
from tr.assemble import assemble, sampling_of
from tr.config import Generate
from tr.decode.generate import answer
from tr.decode.stream import Counts, warnings
from tr.decode.words import Words
from tr.progress import reporting


def run(config: Generate) -> None:
    """Stream one answer to standard output, its figures to standard error."""
    if not config.prompt:
        raise ValueError('prompt is empty; give one: prompt="Why is the sky blue?"')
    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    made = assemble(config)
    draft = made.draft(config)
    tokenizer = made.tokenizer
    words, counts = Words(tokenizer.detokenizer(special=False), config.stop), Counts()
    if config.chat:
        message = {"role": "user", "content": config.prompt}
        prompt = tokenizer.chat([message], enable_thinking=False)
    else:
        prompt = tokenizer.encode(config.prompt)
        print(config.prompt, end="", flush=True)
    steps = answer(
        made.model,
        draft,
        prompt,
        sampling_of(config),
        config.max_new_tokens,
        made.eos,
        config.kv.capacity_tokens,
        counts,
        words,
    )
    for _ in steps:
        print(words.take(), end="", flush=True)
    print(words.finish())
    for warning in made.warnings + warnings(counts.broken):
        print(f"warning: {warning}", file=sys.stderr)
    print(summary(draft.name, len(prompt), counts), file=sys.stderr)


def told(config: Generate) -> None:
    with reporting(config.progress):
        run(config)


def summary(draft: str, prompt: int, counts: Counts) -> str:
    speed = sum(counts.kept) / counts.seconds if counts.seconds else 0.0
    return (
        f"[{draft}: {counts.tokens_per_step:.2f} tokens per step, {speed:.0f} tokens/s;"
        f" {prompt} prompt + {len(counts.tokens)} new tokens, stopped by {counts.stop}]"
    )


def main() -> int:
    return overrides.command("tr.generate", "generate", told)


if __name__ == "__main__":
    sys.exit(main())
