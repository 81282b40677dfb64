"""Two- and three-digit sums with a digit-by-digit scratchpad.

Thinking mode, 347 + 268 (one token per digit; every line ends in two digits, the first of them is the carry):

    347+268         the operands, padded with zeros to the same width
    7+8+0=15        units, with the carry 0
    4+6+1=11
    3+2+1=06
    615             the last digit of every line from below, leading zeros dropped

Subtraction borrows ten beforehand (`14-6-1=7`; a line that starts with 1 tells the next one to take 1), a negative
difference is turned round first, and multiplication by one digit carries as addition does.  In chat mode the same
lines are written as the answer.
"""

from .common import assistant, held, mode_of, system, user, vary

ADD = [
    "What is {a} + {b}?", "What is {a} plus {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "{a}+{b}=", "Add {a} and {b}.",
    "How much is {a} + {b}?", "Calculate {a} + {b}.", "Compute {a} + {b}.", "What is the sum of {a} and {b}?",
    "Can you add {a} and {b}?", "What do you get if you add {b} to {a}?", "Please compute {a} plus {b}.",
    "I have {a} apples and buy {b} more. How many apples do I have?", "Work out {a} + {b}.", "What's {a} + {b}?",
    "what is {a}+{b}?", "Solve {a} + {b}.", "A shelf has {a} books and another has {b}. How many books are there?",
]  # fmt: skip
SUB = [
    "What is {a} - {b}?", "What is {a} minus {b}?", "{a} - {b}", "{a}-{b}", "{a} - {b} = ?", "{a}-{b}=",
    "Subtract {b} from {a}.", "How much is {a} - {b}?", "Calculate {a} - {b}.", "Compute {a} - {b}.",
    "What is the difference of {a} and {b}?", "Take {b} away from {a}.", "Please compute {a} minus {b}.",
    "What do you get if you subtract {b} from {a}?", "Work out {a} - {b}.", "What's {a} - {b}?", "what is {a}-{b}?",
    "Solve {a} - {b}.", "I have {a} coins and spend {b}. How many are left?",
]  # fmt: skip
MUL = [
    "What is {a} * {b}?", "What is {a} times {b}?", "{a} * {b}", "{a}*{b}", "{a} x {b}", "{a} * {b} = ?", "{a} × {b}",
    "Multiply {a} by {b}.", "How much is {a} times {b}?", "Calculate {a} * {b}.", "Compute {a} * {b}.",
    "What is the product of {a} and {b}?", "Please compute {a} times {b}.", "Work out {a} * {b}.", "What's {a} * {b}?",
    "what is {a}*{b}?", "What is {a} x {b}?", "Solve {a} * {b}.", "One box holds {a} eggs. How many eggs are in {b} boxes?",
    "What is {a} multiplied by {b}?",
]  # fmt: skip
FORMS = {"+": ADD, "-": SUB, "*": MUL}


def draw(rng):
    """(operation, a, b)"""
    op = rng.choices("+-*", (40, 35, 25))[0]
    size = rng.random()
    if op == "*":
        a, b = (rng.randint(2, 9) if size < 0.15 else rng.randint(10, 99)), rng.randint(2, 9)
    elif size < 0.1:
        a, b = rng.randint(0, 20), rng.randint(0, 20)
    elif size < 0.4:
        a, b = rng.randint(10, 99), rng.randint(10, 99)
    elif size < 0.55:
        a, b = rng.randint(100, 999), rng.randint(10, 99)
        if op == "+" and rng.random() < 0.5:
            a, b = b, a
    else:
        a, b = rng.randint(100, 999), rng.randint(100, 999)
    if op == "-" and a < b and rng.random() < 0.7:
        a, b = b, a
    return op, a, b


def hard(rng):
    """What training needs more of: products with many carries, and differences of numbers that are close."""
    if rng.random() < 0.5:
        return "*", rng.randint(10, 99), rng.randint(4, 9)
    a = rng.randint(0, 99) if rng.random() < 0.7 else rng.randint(100, 999)
    return "-", a, max(0, a + rng.randint(-12, 12))


def result(op, a, b):
    return a + b if op == "+" else a - b if op == "-" else a * b


def scratchpad(op, a, b):
    """The working, one line per digit; the last line is the result."""
    lines = []
    if op == "*":
        lines.append(f"{a}*{b}")
        c = 0
        for d in reversed(str(a)):
            v = int(d) * b + c
            lines.append(f"{d}*{b}+{c}={v:02d}")
            c = v // 10
    else:
        x, y = a, b
        w = max(len(str(a)), len(str(b)))
        if op == "-" and a < b:
            lines.append(f"{a:0{w}d}<{b:0{w}d}")
            x, y = b, a
        x, y = f"{x:0{w}d}", f"{y:0{w}d}"
        lines.append(f"{x}{op}{y}")
        c = 0
        for p, q in zip(reversed(x), reversed(y), strict=True):
            if op == "+":
                v = int(p) + int(q) + c
                lines.append(f"{p}+{q}+{c}={v:02d}")
                c = v // 10
            else:
                n = 1 if int(p) < int(q) + c else 0
                lines.append(f"{n}{p}-{q}-{c}={10 * n + int(p) - int(q) - c}")
                c = n
    lines.append(str(result(op, a, b)))
    return "\n".join(lines)


def key(op, a, b):
    return f"arith {a}{op}{b}"


def is_held(op, a, b):
    return a >= 10 and (op == "*" or b >= 10) and held(key(op, a, b))


def turn(rng, problem, mode, short=False):
    op, a, b = problem
    work = scratchpad(op, a, b)
    final = f"{a} {op} {b} = {result(op, a, b)}"
    if short or mode == "thinking":
        return assistant(final, work)
    return assistant(work[: work.rindex("\n")] + "\n" + final)


def question(rng, problem):
    op, a, b = problem
    forms = FORMS[op]
    text = rng.choice(forms[:6] if rng.random() < 0.4 else forms).format(a=a, b=b)
    return vary(rng, text) if rng.random() < 0.5 else text


def make(rng, train, mode=None):
    while True:
        problem = hard(rng) if train and rng.random() < 0.3 else draw(rng)
        if is_held(*problem) != train:
            break
    mode = mode_of(rng, mode)
    messages = system(rng, share=0.25)
    if not train:
        messages.append(user(question(rng, problem)))
        return dict(
            messages=messages,
            mode=mode,
            key=key(*problem),
            expected=str(result(*problem)),
            target=turn(rng, problem, mode),
        )
    while rng.random() < 0.2 and len(messages) < 5:
        other = draw(rng)
        if not is_held(*other):
            messages += [user(question(rng, other)), turn(rng, other, mode)]
    messages += [user(question(rng, problem)), turn(rng, problem, mode)]
    return dict(messages=messages, mode=mode)
