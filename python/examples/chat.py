"""A conversation of two questions: python chat.py TARGET.gguf DRAFT.gguf"""

import sys

import dflash2

QUESTIONS = ["What is a cache?", "And why are there several levels of it?"]


def main() -> None:
    target, draft = sys.argv[1:]
    params = dflash2.SamplingParams(max_tokens=80)
    messages = [{"role": "system", "content": "You answer briefly."}]
    with dflash2.load(target, draft) as engine:
        for question in QUESTIONS:
            print(f"> {question}")
            messages.append({"role": "user", "content": question})
            answer = ""
            for token in engine.chat(messages, params, stream=True):
                print(token.text, end="", flush=True)
                answer += token.text
            print()
            messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
