"""Print tokens as they come and stop early: python stream.py TARGET.gguf DRAFT.gguf"""

import sys

import dflash2


def main() -> None:
    target, draft = sys.argv[1:]
    params = dflash2.SamplingParams(temperature=0.8, top_p=0.95, seed=1, max_tokens=200)
    with dflash2.load(target, draft, spec_draft_n_max=7) as engine:  # a seed repeats it
        from_draft = 0
        for i, token in enumerate(engine.stream("Once upon a time", params), start=1):
            print(token.text, end="", flush=True)
            from_draft += token.from_draft
            if i >= 100 and token.text.rstrip().endswith("."):
                break  # dropping the iterator is fine at any time
        print(f"\n\n{i} tokens, {from_draft} of them drafted")


if __name__ == "__main__":
    main()
