"""Tool calls: ten everyday tools and invented ones, right arguments, and answers that use the result."""

import json

from . import smalltalk
from .common import assistant, held, mode_of, user

CITIES = [
    "Paris",
    "Rome",
    "Madrid",
    "Berlin",
    "London",
    "Lisbon",
    "Athens",
    "Vienna",
    "Warsaw",
    "Oslo",
    "Stockholm",
    "Helsinki",
    "Copenhagen",
    "Dublin",
    "Brussels",
    "Budapest",
    "Moscow",
    "Ankara",
    "Cairo",
    "Nairobi",
    "Tokyo",
    "Beijing",
    "Delhi",
    "Ottawa",
    "Lima",
    "Santiago",
    "Havana",
    "Canberra",
    "Tehran",
    "Baghdad",
    "Bangkok",
    "Hanoi",
    "Catania",
    "Palermo",
    "Milan",
    "Turin",
    "Naples",
    "Venice",
    "Florence",
    "Lyon",
    "Nice",
    "Bordeaux",
    "Hamburg",
    "Munich",
    "Cologne",
    "Porto",
    "Seville",
    "Valencia",
    "Krakow",
    "Bergen",
    "Zurich",
    "Geneva",
    "Prague",
    "Sofia",
    "Tunis",
    "Boston",
    "Chicago",
    "Seattle",
    "Denver",
    "Austin",
    "Dallas",
    "Houston",
    "Miami",
    "Toronto",
    "Montreal",
    "Sydney",
    "Osaka",
    "Kyoto",
    "Seoul",
    "Singapore",
    "Jakarta",
    "Manila",
    "Mumbai",
    "Karachi",
    "Dubai",
    "Doha",
    "Lagos",
    "Accra",
    "Dakar",
    "Quito",
    "Bogota",
    "Caracas",
    "New York",
    "Los Angeles",
    "San Francisco",
    "Hong Kong",
    "Buenos Aires",
    "Cape Town",
    "Rio de Janeiro",
    "Tel Aviv",
]
NAMES = [
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Emma",
    "Felix",
    "Greta",
    "Hugo",
    "Ida",
    "Jack",
    "Karen",
    "Leo",
    "Maria",
    "Nina",
    "Oscar",
    "Paul",
    "Rosa",
    "Sam",
    "Tina",
    "Victor",
    "Wendy",
    "Tom",
    "Lucy",
    "Peter",
    "Alice",
    "Bob",
    "Eve",
    "Frank",
    "Julia",
    "Marco",
    "Sofia",
    "Ahmed",
    "Mei",
    "Kenji",
    "Olga",
    "Ivan",
    "Priya",
    "Omar",
    "Lena",
    "Max",
]
THINGS = [
    "the pasta",
    "the eggs",
    "the tea",
    "the bread",
    "the laundry",
    "the oven",
    "the cake",
    "the rice",
    "my nap",
    "the meeting",
    "the pizza",
    "the soup",
    "the exam",
    "the break",
    "the workout",
    "the potatoes",
    "the coffee",
    "the roast",
    "the game",
    "the call",
]
TEXTS = [
    "I am late",
    "the train is late",
    "see you tomorrow",
    "dinner is ready",
    "the meeting is moved",
    "call me back",
    "happy birthday",
    "I am at home",
    "please buy milk",
    "the door is open",
    "we won the game",
    "thank you for the gift",
    "lunch at noon",
    "bring the keys",
    "the car is fixed",
    "I am on my way",
    "good luck today",
    "do not wait for me",
    "the report is done",
    "check your mail",
]
TITLES = [
    "shopping",
    "ideas",
    "homework",
    "travel",
    "work",
    "garden",
    "recipes",
    "birthdays",
    "books",
    "music",
    "health",
    "house",
    "holiday",
    "project",
]
NOTES = [
    "buy milk and eggs",
    "call the dentist",
    "water the plants",
    "read chapter two",
    "pay the rent",
    "book a hotel",
    "clean the kitchen",
    "write to grandma",
    "fix the bike",
    "plan the party",
    "learn ten words",
    "feed the cat",
    "order new shoes",
    "send the letter",
]
TOPICS = [
    "the history of Rome",
    "cheap flights",
    "how to bake bread",
    "the tallest building",
    "solar energy",
    "jazz music",
    "the life of bees",
    "chess openings",
    "black holes",
    "the price of gold",
    "good books",
    "how to tie a tie",
    "the rules of tennis",
    "old maps",
    "wild flowers",
    "electric cars",
    "the size of the moon",
    "healthy food",
    "train tickets",
    "how glass is made",
]
UNITS = [("km", "miles", 0.621), ("miles", "km", 1.609), ("kg", "pounds", 2.205), ("pounds", "kg", 0.454), ("meters", "feet", 3.281),
         ("feet", "meters", 0.305), ("liters", "gallons", 0.264), ("inches", "cm", 2.54), ("cm", "inches", 0.394)]  # fmt: skip
SKY = ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy", "clear", "stormy"]
LANGS = ["French", "German", "Italian", "Spanish", "Chinese", "Japanese", "Polish", "Dutch"]
SYL = [
    "ba",
    "be",
    "bi",
    "bo",
    "bu",
    "da",
    "de",
    "do",
    "du",
    "fa",
    "fe",
    "fi",
    "ga",
    "go",
    "gu",
    "ha",
    "he",
    "hi",
    "jo",
    "ka",
    "ke",
    "ki",
    "ko",
    "la",
    "le",
    "li",
    "lo",
    "lu",
    "ma",
    "me",
    "mi",
    "mo",
    "mu",
    "na",
    "ne",
    "ni",
    "no",
    "nu",
    "pa",
    "pe",
    "pi",
    "po",
    "ra",
    "re",
    "ri",
    "ro",
    "ru",
    "sa",
    "se",
    "si",
    "so",
    "su",
    "ta",
    "te",
    "ti",
    "to",
    "tu",
    "va",
    "ve",
    "vi",
    "vo",
    "wa",
    "we",
    "za",
    "zo",
]
VERBS = [
    "get",
    "find",
    "lookup",
    "fetch",
    "check",
    "read",
    "open",
    "start",
    "stop",
    "make",
    "update",
    "delete",
    "show",
    "play",
    "book",
    "order",
    "count",
    "list",
]
NOUNS = [
    "price",
    "score",
    "flight",
    "order",
    "user",
    "file",
    "song",
    "room",
    "ticket",
    "route",
    "recipe",
    "event",
    "task",
    "account",
    "sensor",
    "light",
    "door",
    "email",
    "photo",
]
PARAMS = ["name", "id", "item", "place", "date", "color", "size", "topic", "path", "code", "user", "key"]


def strange(rng):
    """An invented word, so that copying does not depend on known words."""
    w = "".join(rng.choice(SYL) for _ in range(rng.randint(2, 4)))
    if rng.random() < 0.3:
        w += rng.choice("nrstlm")
    return w


def or_strange(rng, options, share=0.25, capital=True):
    if rng.random() < share:
        w = strange(rng)
        return w.capitalize() if capital else w
    return rng.choice(options)


def phrase(rng, options):
    r = rng.random()
    if r < 0.6:
        return rng.choice(options)
    if r < 0.8:
        a, b = rng.choice(options).split(" "), rng.choice(options).split(" ")
        return " ".join(a[: max(1, len(a) // 2 + 1)] + b[len(b) // 2 :])
    words = [
        rng.choice(rng.choice(options).split(" ")) if rng.random() < 0.7 else strange(rng)
        for _ in range(rng.randint(2, 4))
    ]
    return " ".join(words)


def number(rng):
    return rng.choice([rng.randint(2, 9), rng.randint(10, 99), rng.randint(2, 20), rng.randint(100, 999)])


def clock(rng):
    return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"


# A tool makes (arguments, question, result object, answer).
def get_weather(rng, props):
    city = or_strange(rng, CITIES)
    t, sky = rng.randint(-9, 39), rng.choice(SKY)
    if "days" not in props or rng.random() < 0.3:
        q = rng.choice(["What is the weather in {c}?", "How is the weather in {c}?", "Weather in {c}?", "What's the weather like in {c} today?",
                        "Is it raining in {c}?", "Do I need an umbrella in {c}?", "How warm is it in {c}?", "Tell me the weather in {c}.",
                        "Check the weather in {c}."])  # fmt: skip
        return (
            dict(city=city),
            q.format(c=city),
            dict(temp=t, sky=sky),
            f"In {city} it is {sky} and {t} degrees.",
        )
    d = rng.randint(1, 10)
    q = rng.choice(["What will the weather be in {c} for the next {d} days?", "Give me the {d} day forecast for {c}.",
                    "Weather in {c} for {d} days?", "How will the weather be in {c} over {d} days?", "Forecast for {c}, {d} days, please.",
                    "I travel to {c} for {d} days. What is the weather?"])  # fmt: skip
    return (
        dict(city=city, days=d),
        q.format(c=city, d=d),
        dict(days=d, temp=t, sky=sky),
        f"In {city} it will be {sky} and {t} degrees for {d} days.",
    )


def get_time(rng, props):
    city = or_strange(rng, CITIES)
    t = clock(rng)
    q = rng.choice(["What time is it in {c}?", "What is the time in {c}?", "Tell me the time in {c}.", "Time in {c}?", "How late is it in {c} now?",
                    "Which time is it in {c}?"])  # fmt: skip
    return dict(city=city), q.format(c=city), dict(time=t), f"It is {t} in {city}."


def calculator(rng, props):
    a, b, op = number(rng) * rng.choice([1, 1, 10]), number(rng), rng.choice("+-*/")
    e = f"{a} {op} {b}"
    if op == "/":
        a = a * b
        e = f"{a} / {b}"
    r = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[op]
    q = rng.choice(["Use the calculator for {e}.", "Calculate {e} with the calculator.", "What is {e}?", "Please compute {e}.", "{e}",
                    "Use the tool to compute {e}.", "How much is {e}?"])  # fmt: skip
    return dict(expression=e), q.format(e=e), dict(result=r), f"{e} = {r}"


def search(rng, props):
    t = phrase(rng, TOPICS)
    about = rng.choice(["page", "article", "site", "book", "video"])
    title, n = strange(rng).capitalize(), rng.randint(2, 90)
    q = rng.choice(["Search for {t}.", "Search the web for {t}.", "Look up {t}.", "Find something about {t}.", "Please search for {t}.",
                    "Google {t}.", "Can you look up {t}?", "I want to know more about {t}."])  # fmt: skip
    return (
        dict(query=t),
        q.format(t=t),
        dict(hits=n, best=f"{title} {about}"),
        f"I found {n} results. The best one is: {title} {about}.",
    )


def set_timer(rng, props):
    m = rng.choice([rng.randint(1, 20), rng.randint(1, 99)])
    at = clock(rng)
    if "label" not in props or rng.random() < 0.4:
        q = rng.choice(["Set a timer for {m} minutes.", "Timer, {m} minutes.", "Wake me in {m} minutes.", "Start a {m} minute timer.",
                        "Please set a timer of {m} minutes.", "Remind me in {m} minutes."])  # fmt: skip
        return dict(minutes=m), q.format(m=m), dict(ends=at), f"The timer of {m} minutes ends at {at}."
    x = rng.choice(THINGS) if rng.random() < 0.75 else "the " + strange(rng)
    q = rng.choice(["Set a timer of {m} minutes for {x}.", "Set a {m} minute timer for {x}.", "I need a timer for {x}, {m} minutes.",
                    "Start a timer for {x}: {m} minutes.", "Remind me of {x} in {m} minutes."])  # fmt: skip
    return (
        dict(minutes=m, label=x),
        q.format(m=m, x=x),
        dict(ends=at),
        f"The timer for {x} ends at {at}.",
    )


def convert_units(rng, props):
    a, b, f = rng.choice(UNITS)
    v = number(rng) if rng.random() < 0.8 else rng.randint(1, 99) + rng.randint(1, 9) / 10
    r = round(v * f, 2)
    q = rng.choice(["Convert {v} {a} to {b}.", "How many {b} are {v} {a}?", "What is {v} {a} in {b}?", "{v} {a} in {b}?", "Please convert {v} {a} into {b}.",
                    "Change {v} {a} to {b}."])  # fmt: skip
    return {"value": v, "from": a, "to": b}, q.format(v=v, a=a, b=b), dict(value=r), f"{v} {a} are {r} {b}."


def send_message(rng, props):
    n = or_strange(rng, NAMES)
    t = phrase(rng, TEXTS)
    q = rng.choice(["Send {n} the message: {t}", "Tell {n}: {t}", "Write to {n}: {t}", "Send a message to {n}: {t}", "Text {n} that {t}",
                    "Let {n} know that {t}", "Message {n}: {t}"])  # fmt: skip
    return dict(to=n, text=t), q.format(n=n, t=t), dict(sent=True), f"I sent the message to {n}."


def create_note(rng, props):
    n, t = or_strange(rng, TITLES, capital=False), phrase(rng, NOTES)
    q = rng.choice(["Make a note called {n}: {t}", "Create a note {n} with the text: {t}", "Note under {n}: {t}", "Write down under {n}: {t}",
                    "New note, title {n}, text: {t}", "Add a note {n}: {t}"])  # fmt: skip
    k = rng.randint(1, 999)
    return dict(title=n, text=t), q.format(n=n, t=t), dict(id=k), f"I saved the note {n} with number {k}."


def translate(rng, props):
    t, lang = phrase(rng, TEXTS), rng.choice(LANGS)
    r = " ".join(strange(rng) for _ in range(rng.randint(1, 3)))
    q = rng.choice(
        [
            "Translate into {g}: {t}",
            "How do you say in {g}: {t}",
            "Translate to {g}: {t}",
            "What is this in {g}: {t}",
        ]
    )
    return dict(text=t, language=lang), q.format(g=lang, t=t), dict(text=r), f"In {lang} this is: {r}"


def roll_dice(rng, props):
    s, n = rng.choice([4, 6, 8, 10, 12, 20, 100]), rng.randint(1, 6)
    r = [rng.randint(1, s) for _ in range(n)]
    q = rng.choice(["Roll {n} dice with {s} sides.", "Throw {n} dice with {s} sides.", "Please roll {n} dice of {s} sides.",
                    "Roll {n} {s}-sided dice."])  # fmt: skip
    return (
        dict(count=n, sides=s),
        q.format(n=n, s=s),
        dict(rolls=r),
        f"The dice show {', '.join(map(str, r))}.",
    )


S, I, N = "string", "integer", "number"  # noqa: E741
TOOLS = {
    get_weather: (["Weather for a city", "Get the weather of a city", "Current weather and forecast", "Get the weather"],
                  dict(city=S, days=I), ("city",)),
    get_time: (["Current time in a city", "Get the local time", "Get the current time"], dict(city=S), ("city",)),
    calculator: (["Evaluate an arithmetic expression", "Compute an expression", "A calculator"], dict(expression=S), ("expression",)),
    search: (["Search the web", "Find pages about a topic", "Web search"], dict(query=S), ("query",)),
    set_timer: (["Set a timer", "Start a timer", "Set a timer in minutes"], dict(minutes=I, label=S), ("minutes",)),
    convert_units: (["Convert between units", "Convert a value to another unit"], {"value": N, "from": S, "to": S}, ("value", "from", "to")),
    send_message: (["Send a message to a person", "Send a text message"], dict(to=S, text=S), ("to", "text")),
    create_note: (["Save a note", "Create a note with a title"], dict(title=S, text=S), ("title", "text")),
    translate: (["Translate a text", "Translate into another language"], dict(text=S, language=S), ("text", "language")),
    roll_dice: (["Roll dice", "Throw dice"], dict(count=I, sides=I), ("count", "sides")),
}  # fmt: skip
PLAIN_Q = ("calculator",)


def schema(name, description, props, required):
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {k: {"type": t} for k, t in props.items()},
                "required": list(required),
            },
        },
    }


def declare(rng, maker):
    """(schema, maker) with small variations of the declaration."""
    texts, props, required = TOOLS[maker]
    props = dict(props)
    for k in list(props):
        if k not in required and rng.random() < 0.25:
            del props[k]
    s = schema(maker.__name__, rng.choice(texts), props, required)
    if rng.random() < 0.15:
        for k in props:
            s["function"]["parameters"]["properties"][k]["description"] = rng.choice(
                ["The " + k, k.capitalize(), "the " + k + " to use"]
            )
    if rng.random() < 0.1:
        s["function"]["parameters"].pop("required")
    return s, lambda r: maker(r, props)


def invented(rng):
    """A tool that no one has seen before, called by name."""
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS) if rng.random() < 0.7 else strange(rng)}"
    keys = rng.sample(PARAMS, rng.randint(1, 2))
    props = {k: rng.choice([S, S, I]) for k in keys}
    s = schema(name, name.replace("_", " ").capitalize(), props, keys)

    def make_call(r):
        args = {
            k: number(r) if t == I else (strange(r) if r.random() < 0.5 else phrase(r, TOPICS + NOTES))
            for k, t in props.items()
        }
        text = " and ".join(f"{k} {v}" for k, v in args.items())
        q = r.choice(
            ["Call {n} with {t}.", "Use {n} with {t}.", "Run {n}: {t}", "Please use {n}, {t}."]
        ).format(n=name, t=text)
        out = r.choice([number(r), strange(r), strange(r) + " " + strange(r)])
        return args, q, dict(result=out), f"The result is {out}."

    return s, make_call


def call_of(name, args):
    return {"type": "function", "function": {"name": name, "arguments": json.dumps(args, ensure_ascii=False)}}


def key(name, args):
    return f"tool {name} {json.dumps(args, sort_keys=True)}"


def draw(rng, name, make_call, train):
    for _ in range(400):
        args, q, result, answer = make_call(rng)
        if held(key(name, args), 12) != train:
            return args, q, result, answer
    return None


def dump(rng, result):
    r = rng.random()
    if r < 0.75:
        return json.dumps(result)
    if r < 0.9:
        return ", ".join(
            f"{k}: {v if not isinstance(v, list) else ' '.join(map(str, v))}" for k, v in result.items()
        )
    return json.dumps(result, separators=(",", ":"))


def make(rng, train, mode=None):
    mode = mode_of(rng, mode)
    if rng.random() < (0.72 if train else 0.82):  # training needs more copies of invented words
        makers = rng.sample(list(TOOLS), rng.choice([1, 2, 3, 2]))
        tools = [declare(rng, m) for m in makers]
        if rng.random() < 0.1:
            tools[rng.randrange(len(tools))] = invented(rng)
    else:
        tools = [invented(rng) for _ in range(rng.choice([1, 2]))]
    content = rng.choice(
        ["", "", "You are a helpful assistant.", "You can use tools.", "Use tools when they help."]
    )
    messages = [{"role": "system", "content": content, "tools": [t[0] for t in tools]}]
    if not train:
        while True:
            s, make_call = rng.choice(tools)
            name = s["function"]["name"]
            got = draw(rng, name, make_call, False)
            if got:
                break
            tools = [declare(rng, rng.choice(list(TOOLS)))]
            messages[0]["tools"] = [tools[0][0]]
        args, q, result, answer = got
        messages.append(user(q))
        return dict(
            messages=messages, mode=mode, key=key(name, args), expected=dict(name=name, arguments=args),
            result=dump(rng, result), answer=answer,
            target=assistant("", f"I call {name}.", [call_of(name, args)]),
        )  # fmt: skip
    for _ in range(rng.choice([1, 2, 2, 3])):
        r = rng.random()
        if r < 0.1:
            q, _, answer, _ = smalltalk.one(rng, "plain")
            messages += [user(q), assistant(answer, "No tool is needed.")]
            continue
        s, make_call = rng.choice(tools)
        name = s["function"]["name"]
        args, q, result, answer = draw(rng, name, make_call, True)
        calls, results, answers, why = [call_of(name, args)], [dump(rng, result)], [answer], f"I call {name}."
        if r > 0.93:
            s2, make2 = rng.choice(tools)
            n2 = s2["function"]["name"]
            a2, q2, r2, ans2 = draw(rng, n2, make2, True)
            q = q + rng.choice([" And also: ", " Then: ", " "]) + q2
            calls.append(call_of(n2, a2))
            results.append(dump(rng, r2))
            answers.append(ans2)
            why = f"I call {name} and {n2}."
        messages += [user(q), assistant("", why, calls)]
        messages += [{"role": "tool", "content": x} for x in results]
        messages.append(assistant(" ".join(answers), "I have the result."))
    if mode == "chat":
        for m in messages:
            m.pop("reasoning_content", None)
    return dict(messages=messages, mode=mode)
