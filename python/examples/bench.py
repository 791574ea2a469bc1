"""Speed by draft length, 0 is plain decoding: python bench.py TARGET.gguf DRAFT.gguf"""

import sys

import dflash2

PROMPTS = ["def quicksort(values):", "The history of the steam engine began", "1, 2, 4, 8, 16,"]


def main() -> None:
    target, draft = sys.argv[1:]
    params = dflash2.SamplingParams(temperature=0, max_tokens=32)
    with dflash2.load(target, draft) as engine:
        print("drafted/round   tok/s   mean accept length")
        for n in range(engine.spec_draft_n_max + 1):
            runs = [engine.generate(p, params, spec_draft_n_max=n).stats for p in PROMPTS]
            tokens = sum(s.num_generated_tokens for s in runs)
            ms = sum(s.draft_ms + s.verify_ms + s.sample_ms for s in runs)
            drafts = sum(s.num_drafts for s in runs)
            accepted = sum(s.num_accepted_tokens for s in runs)
            length = 1 + accepted / drafts if drafts else 1.0
            print(f"{n:13} {1000 * tokens / ms:7.1f} {length:20.2f}")


if __name__ == "__main__":
    main()
