"""Generate once, with and without the drafter: python generate.py TARGET.gguf DRAFT.gguf"""

import sys

import dflash2


def main() -> None:
    target, draft = sys.argv[1:]
    params = dflash2.SamplingParams(temperature=0, max_tokens=64)
    with dflash2.load(target, draft) as engine:
        answer = engine.generate("The capital of France is", params)
        plain = engine.generate("The capital of France is", params, spec_draft_n_max=0)
    print(answer.text)
    print(f"\nended by {answer.finish_reason}, mean accept length", end=" ")
    print(f"{answer.stats.mean_accept_length:.2f}")
    print(f"{answer.stats.generation_tps:.1f} tok/s, plain {plain.stats.generation_tps:.1f} tok/s")


if __name__ == "__main__":
    main()
