"""Helpers shared by the generators."""

import hashlib

SYSTEM = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are ds4-tiny, a small model.",
    "You are a friendly assistant.",
    "You are a careful assistant.",
    "Answer the question.",
    "You are an AI assistant that helps people.",
    "Be polite and correct.",
]
BRIEF = [
    "Be brief.",
    "Be brief.",
    "Answer briefly.",
    "Keep your answers short.",
    "Give short answers.",
    "Reply with as few words as possible.",
    "You are a terse assistant.",
    "Be concise.",
]
DETAIL = [
    "Answer in detail.",
    "Answer in detail.",
    "Give detailed answers.",
    "Explain everything in detail.",
    "Be thorough.",
    "Give long and complete answers.",
    "You are a verbose assistant.",
    "Write detailed explanations.",
]

ASK_BRIEF = ["Answer briefly: ", "Briefly: ", "In a few words: ", "Be brief. ", "Short answer please: "]
ASK_DETAIL = [
    "Answer in detail: ",
    "Explain in detail: ",
    "In detail: ",
    "Be thorough. ",
    "Long answer please: ",
]


def held(key, share=20):
    """True for one in `share` keys: these belong to the held-out set."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) % share == 0


def mode_of(rng, mode):
    return mode or ("thinking" if rng.random() < 0.6 else "chat")


def system(rng, texts=SYSTEM, share=0.4):
    return [{"role": "system", "content": rng.choice(texts)}] if rng.random() < share else []


def styled(rng, style, always=False):
    """System messages that ask for a style; a third of the conversations asks in the user message instead, unless
    `always`."""
    if style == "plain":
        return system(rng)
    return system(rng, BRIEF if style == "brief" else DETAIL, 1.0 if always else 0.67)


def ask(rng, style, question):
    """The question with the wish for a style."""
    return rng.choice(ASK_BRIEF if style == "brief" else ASK_DETAIL) + question


def asked(rng, style, messages, question):
    """The user message: with the wish for a style where no system text has it."""
    return user(question if style == "plain" or messages else ask(rng, style, question))


def user(text):
    return {"role": "user", "content": text}


def assistant(content, reasoning=None, calls=None):
    m = {"role": "assistant", "content": content}
    if reasoning is not None:
        m["reasoning_content"] = reasoning
    if calls:
        m["tool_calls"] = calls
    return m


def vary(rng, text):
    """Small variations of a question: case, final mark, courtesy."""
    r = rng.random()
    if r < 0.08:
        text = text[0].lower() + text[1:]
    elif r < 0.14:
        text = (
            rng.choice(["Please tell me: ", "Quick question: ", "Hi! ", "Hello. ", "Hey, ", "Tell me: "])
            + text
        )
    elif r < 0.20:
        text = text + rng.choice([" Please.", " Thanks.", " Thank you!"])
    if rng.random() < 0.1 and text.endswith("?"):
        text = text[:-1]
    return text
