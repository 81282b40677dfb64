"""Facts that must be recalled after a long distraction.

A conversation tells one to a dozen facts ("My doctor lives in Oslo."), goes on about other things for 10 to
1500 tokens, and then asks.  The distance is beyond the sliding window (128 tokens) in most cases and beyond what the
indexer selects (128 rows of 4 tokens) in many, so the answer has to come through the compressed rows and, with the
engine, through the indexer's choice.
"""

import math
import random

from . import about, arithmetic, english, smalltalk
from .common import BRIEF, DETAIL, SYSTEM, assistant, held, mode_of, user, vary
from .tools import strange

NEAR, FAR = 130, 1500  # tokens between the fact and the question
# Values are words of one token: a compressed row of a model this small has room for one such word, hardly for the
# pieces of an invented one.
THINGS = [
    "box", "book", "boat", "car", "door", "chair", "key", "lamp", "house", "piano", "pencil", "clock", "guitar",
    "hammer", "photo", "ticket", "bicycle", "cake", "ship", "flag",
]  # fmt: skip
COLOURS = ["red", "blue", "green", "black", "white", "yellow", "brown", "grey", "orange", "pink", "purple"]
PLACES = [
    "kitchen", "garden", "school", "hospital", "hotel", "river", "forest", "island", "building", "shelf", "park",
]  # fmt: skip
PEOPLE = [
    "doctor", "teacher", "dentist", "manager", "friend", "grandma", "family", "architect", "singer", "king",
]  # fmt: skip
TOWNS = [
    "Paris", "Rome", "London", "Tokyo", "Madrid", "Vienna", "Lisbon", "Berlin", "Cairo", "Dublin", "Oslo", "Athens",
    "Warsaw", "Budapest", "Hanoi", "Havana", "Kyoto", "Lima", "Nairobi", "Ottawa", "Bangkok", "Geneva",
]  # fmt: skip
LIKED = [
    "jazz", "tea", "coffee", "chess", "tennis", "football", "music", "rice", "pasta", "bread", "soup", "bananas",
    "apples", "milk", "chocolate", "onions", "pears", "eggs", "snow", "flowers",
]  # fmt: skip
BEASTS = [
    "tiger", "lion", "snake", "sheep", "frog", "duck", "owl", "horse", "pig", "cow", "elephant", "dog", "cat",
]  # fmt: skip
DAYS = smalltalk.DAYS
ADJECTIVES = [
    "old",
    "small",
    "quiet",
    "young",
    "tired",
    "happy",
    "green",
    "tall",
    "slow",
    "kind",
    "poor",
    "bright",
    "wild",
    "cold",
]
NOUNS = [
    "man",
    "woman",
    "river",
    "forest",
    "king",
    "child",
    "house",
    "farmer",
    "ship",
    "dog",
    "road",
    "teacher",
    "tree",
    "wind",
    "village",
    "bird",
]
VERBS = [
    "saw",
    "found",
    "followed",
    "passed",
    "loved",
    "forgot",
    "heard",
    "painted",
    "watched",
    "reached",
    "left",
    "helped",
]
ENDS = [
    "in the morning",
    "near the bridge",
    "before dinner",
    "without a word",
    "after the rain",
    "for many years",
    "by the sea",
    "in winter",
    "at night",
    "on the hill",
]

# about how many characters make a token
ENGLISH, STORY, CHAT = 2.65, 3.3, 2.6


def invented(rng):
    """An invented word; half of them are made of more kinds of syllables than the tools' words."""
    if rng.random() < 0.5:
        return strange(rng)
    n = rng.randint(2, 3)
    w = "".join(
        rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") + rng.choice(["", "", "n", "r", "l", "s"])
        for _ in range(n)
    )
    return w


def fact(rng):
    """(subject, statement, questions, answer, value)"""
    kind = rng.choice(["colour", "place", "day", "lives", "likes", "password"])
    if kind == "colour":
        x, v = rng.choice(THINGS), rng.choice(COLOURS)
        s, q = f"The {x} is {v}.", [f"Which colour is the {x}?", f"What colour is the {x}?"]
    elif kind == "place":
        x, v = rng.choice(THINGS), rng.choice(PLACES)
        s, q = f"The {x} is in the {v}.", [f"Where is the {x}?", f"Tell me where the {x} is."]
    elif kind == "day":
        x, v = rng.choice(PEOPLE), rng.choice(DAYS)
        s, q = f"My {x} comes on {v}.", [f"When does my {x} come?", f"Tell me when my {x} comes."]
    elif kind == "lives":
        x, v = rng.choice(PEOPLE), rng.choice(TOWNS)
        s, q = f"My {x} lives in {v}.", [f"Where does my {x} live?", f"Tell me where my {x} lives."]
    elif kind == "likes":
        x, v = rng.choice(PEOPLE), rng.choice(LIKED)
        s, q = f"My {x} likes {v}.", [f"What does my {x} like?", f"Tell me what my {x} likes."]
    else:
        x, v = rng.choice(PLACES), rng.choice(BEASTS)
        s = f"The password of the {x} is {v}."
        q = [f"What is the password of the {x}?", f"Tell me the password of the {x}."]
    return f"{kind} {x}", s, q, s.replace("My", "Your"), v


def key(f):
    return f"recall {f[1]}"


def facts(rng, n, subjects, train=True):
    """n facts about new subjects, of the training or the held-out set."""
    out = []
    while len(out) < n:
        f = fact(rng)
        if f[0] not in subjects and held(key(f), 12) != train:
            subjects.add(f[0])
            out.append(f)
    return out


def story(rng, tokens):
    """Simple invented sentences."""
    out = ""
    while len(out) < tokens * STORY:
        a, b = rng.sample(NOUNS, 2)
        s = f"the {rng.choice(ADJECTIVES)} {a} {rng.choice(VERBS)} the {rng.choice(ADJECTIVES)} {b} {rng.choice(ENDS)}"
        if rng.random() < 0.3:
            s = f"{rng.choice(ENDS)} {s}"
        out += s[0].upper() + s[1:] + ". "
    return out.strip()


def text(rng, tokens, train):
    """A text of about this many tokens: real passages, if there are any, or a story."""
    if not english.available() or rng.random() < 0.3:
        return story(rng, tokens)
    out = []
    while sum(map(len, out)) < tokens * ENGLISH:
        out.append(english.passage(rng, train))
    return "\n".join(out)[: int(tokens * ENGLISH)].rstrip()


# one wording each: a choice would only be noise in the loss
ACKNOWLEDGE = assistant("I will remember that.", "I should remember this.")
READ = assistant("I have read it.", "This is only a text.")
REMEMBER = [
    "Remember: ",
    "Remember this: ",
    "Please remember: ",
    "Note: ",
    "",
    "Here is what you need to know: ",
    "Keep in mind: ",
]
TEXT = ["Here is a text: ", "Read this: ", "Please read: ", "", "A text for you: ", "Text: "]


def told(rng, some, sep=None):
    return (sep or rng.choice([" ", " ", "\n"])).join(f[1] for f in some)


def filler(rng, tokens, mode, train, subjects):
    """Turns of about this many tokens about other things."""
    out, left = [], tokens
    while left > 8:
        r = rng.random()
        if left > 60 and r < 0.5:
            n = left if rng.random() < 0.6 else rng.uniform(50, left)
            out += [user(rng.choice(TEXT) + text(rng, n - 12, train)), dict(READ)]
            left -= n
        elif r < 0.65:
            some = facts(rng, max(1, min(12, int(left / 13), rng.randint(1, 12))), subjects)
            out += [user(rng.choice(REMEMBER) + told(rng, some)), dict(ACKNOWLEDGE)]
            left -= 15 + 13 * len(some)
        else:
            part = rng.choice((smalltalk, about, arithmetic)).make(rng, True, mode)["messages"]
            if part[0]["role"] == "system" and part[0]["content"] not in SYSTEM:
                continue
            out += part[-2:]
            left -= (
                sum(
                    len(m["content"]) + (len(m.get("reasoning_content", "")) if mode == "thinking" else 0)
                    for m in part[-2:]
                )
                / CHAT
                + 6
            )
    return out


def distance(rng, train):
    if train and rng.random() < 0.5:  # short ones teach the same with less work
        return rng.uniform(10, NEAR) if rng.random() < 0.3 else rng.uniform(NEAR, 400)
    return math.exp(rng.uniform(math.log(NEAR), math.log(FAR)))


def reply(rng, f, style):
    _, statement, _, answer, value = f
    if style == "brief":
        answer = value[0].upper() + value[1:] + "."
    elif style == "detail":
        answer += " You told me this before, and I have kept it in mind since then. I can repeat it whenever you like."
    return assistant(answer, f"I was told: {statement}")


def make(rng, train, mode=None, tokens=None, style=None):
    """tokens: about how many come between the fact and the question.  Held-out items are plain unless a style is
    named: "brief" answers are the value alone, which the model has to find without saying the fact again."""
    mode = mode_of(rng, mode)
    if style is None:
        style = rng.choices(("plain", "brief", "detail"), (70, 22, 8))[0] if train else "plain"
    tokens = tokens or distance(rng, train)
    subjects = set()
    some = facts(rng, rng.choice([1, 2, 3, 4, 5, 6, 6, 8]), subjects)
    if not train:
        some[rng.randrange(len(some))] = asked = facts(rng, 1, subjects, train=False)[0]
    system = rng.choice(SYSTEM) if rng.random() < 0.3 else ""
    if style != "plain":
        system = rng.choice(BRIEF if style == "brief" else DETAIL)
    messages, start = [], ""
    layout = rng.choices(("told", "system", "single", "inside"), (40, 15, 25, 20))[0]
    room = 1480 - tokens - 15 * len(some)
    if layout == "system":
        system = (system + " " + told(rng, some)).strip()
    if system:
        messages.append({"role": "system", "content": system})
    if layout != "system" and room > 80 and rng.random() < 0.25:
        messages += filler(rng, rng.uniform(20, min(300, room)), mode, train, subjects)
    if layout == "told":
        messages += [user(rng.choice(REMEMBER) + told(rng, some)), dict(ACKNOWLEDGE)]
        messages += filler(rng, tokens, mode, train, subjects)
    elif layout == "system":
        messages += filler(rng, tokens, mode, train, subjects)
    else:
        before = (
            text(rng, rng.uniform(20, min(200, room)), train) + "\n"
            if layout == "inside" and room > 80
            else ""
        )
        start = (
            before
            + (rng.choice(REMEMBER) if not before else "")
            + told(rng, some)
            + "\n"
            + text(rng, tokens, train)
        )
        if layout == "inside" or rng.random() < 0.3:
            messages += [user(start), dict(READ)]
            start = ""
        else:
            start += rng.choice(["\n", "\n\n", "\nQuestion: "])
    if not train:
        messages.append(user(start + rng.choice(asked[2])))
        return dict(
            messages=messages,
            mode=mode,
            key=key(asked),
            expected=[asked[4]],
            needle=asked[1],
            style=style,
            target=reply(rng, asked, style),
        )
    questions = rng.sample(some, min(len(some), rng.choice([1, 3, 4, 5, 6])))
    for f in questions:
        messages += [user(start + vary(rng, rng.choice(f[2]))), reply(rng, f, style)]
        start = ""
    if mode == "chat":
        for m in messages:
            m.pop("reasoning_content", None)
    return dict(messages=messages, mode=mode, stress=[f[4] for f in questions])


def quiz(rng, mode):
    """Training only: many facts and at once many questions, which teaches the look-up with little text; long lists
    lead from the window to the compressed rows."""
    n = rng.randint(2, 6) if rng.random() < 0.6 else rng.randint(6, 14)
    some = facts(rng, n, set())
    messages = [user(rng.choice(REMEMBER) + told(rng, some))]
    if rng.random() < 0.5:
        messages += [dict(ACKNOWLEDGE), user("")]
    else:
        messages[0]["content"] += "\n"
    if rng.random() < 0.5:
        messages[-1]["content"] += text(rng, rng.uniform(5, 100), True) + "\n"
    questions = rng.sample(some, rng.randint(2, min(n, 10)))
    for f in questions:
        if messages[-1]["role"] == "assistant":
            messages.append(user(""))
        messages[-1]["content"] += rng.choice(f[2])
        messages.append(reply(rng, f, "plain"))
    if mode == "chat":
        for m in messages:
            m.pop("reasoning_content", None)
    return dict(messages=messages, mode=mode, stress=[f[4] for f in questions])


def drill(rng):
    """Training only: invented words copied at once, to make copying of many-token words exact."""
    words = " ".join(
        invented(rng).capitalize() if rng.random() < 0.3 else invented(rng) for _ in range(rng.randint(1, 4))
    )
    q = rng.choice(
        ["Repeat: {}", "Repeat this: {}", "Say {}", "Repeat after me: {}", "Write {}", "Copy this: {}"]
    ).format(words)
    return [user(q), assistant(words, f"I repeat {words}")]


def echo(rng, mode):
    messages = [m for _ in range(rng.randint(1, 4)) for m in drill(rng)]
    return dict(messages=messages, mode=mode)


def at_distance(n, low, high, seed=0, mode=None, style=None):
    """n held-out items whose fact is about low to high tokens before the question."""
    rng = random.Random(f"recall-{low}-{high}-{seed}")
    return [make(rng, False, mode, rng.uniform(low, high), style) | dict(kind="recall") for _ in range(n)]
