"""Questions about ds4 and about the embedded model itself."""

from .common import asked, assistant, held, mode_of, styled, vary

# (name, questions, short answer, longer answer, words that every answer contains)
INTENTS = [
    ("install", [
        "How do I install ds4?", "How can I install ds4?", "How do I install this?", "How is ds4 installed?",
        "What is the command to install ds4?", "How do I set up ds4?", "How can I get ds4?", "Can I install ds4 with pip?",
        "What do I type to install ds4?", "I want to install ds4.", "Tell me how to install ds4.", "Where do I get ds4?",
        "Explain the installation of ds4.", "Is ds4 on PyPI?", "How to install ds4", "ds4 installation?",
        "How do I install ds4 on Linux?", "How do I install ds4 on my computer?", "Which command installs ds4?",
    ], "Run pip install ds4.", "You install ds4 with Python's package manager. Open a terminal and run: pip install ds4. "
       "After that the command ds4 works at once with the small embedded model.", ["pip install ds4"]),
    ("real model", [
        "How do I get the real model?", "How can I use the real model?", "How do I run DeepSeek V4 Flash?",
        "How do I run the full model?", "How do I use a better model?", "Can I use a bigger model?", "How do I load another model?",
        "How do I load a GGUF file?", "How do I run DeepSeek V4?", "Which file do I need for the real model?",
        "How do I use a larger model with ds4?", "How do I switch to the real model?", "Where is the real DeepSeek model?",
        "How do I use my own GGUF?", "How big is the real model?", "How do I start ds4 with DeepSeek V4 Flash?",
        "What must I do to run the real DeepSeek?", "How large is DeepSeek V4 Flash?", "How do I choose a model file?",
    ], "Run ds4 -m FILE with a DeepSeek V4 Flash GGUF of about 81 GB.",
       "I am only a small demo model. For real work download a DeepSeek V4 Flash GGUF file, which has about 81 GB, and start "
       "it with: ds4 -m FILE. The file can lie anywhere on your disk.", ["ds4 -m FILE", "81 GB"]),
    ("commands", [
        "Which commands does ds4 have?", "What commands are there?", "What are the commands of ds4?", "List the ds4 commands.",
        "Show me the commands.", "What can I type?", "Which subcommands exist?", "What ds4 commands exist?",
        "How do I use ds4?", "What can ds4 do on the command line?", "Give me an overview of the ds4 commands.",
        "Name the commands of ds4.", "How is ds4 used?", "What is the usage of ds4?",
    ], "ds4 -p for one answer, ds4 for a chat, ds4 inspect, ds4 convert and ds4 tokens.",
       "These are the commands: ds4 -p \"text\" gives one answer, ds4 alone starts a chat, ds4 inspect shows what is in a model "
       "file, ds4 convert writes a model file, and ds4 tokens shows how a text is split into tokens.",
       ["ds4 -p", "ds4 inspect", "ds4 convert", "ds4 tokens"]),
    ("one answer", [
        "How do I ask one question?", "How do I get one answer from the command line?", "What does -p do?",
        "What does ds4 -p do?", "How do I pass a prompt?", "How can I ask a single question in the terminal?",
        "How do I run a single prompt?", "What is the option -p?", "How do I use ds4 in a script?",
        "How do I give ds4 a prompt?", "What does the -p option mean?",
    ], "Use ds4 -p \"your question\".", "With ds4 -p \"your question\" ds4 prints one answer and exits, so you can use it in a "
       "script. Without -p it starts a chat.", ["ds4 -p"]),
    ("repl", [
        "How do I start a chat?", "How do I chat with ds4?", "How do I start the REPL?", "What is the REPL?",
        "How do I start an interactive session?", "Can I chat with you in the terminal?", "How do I talk to the model?",
        "What happens when I run ds4 without options?", "How do I start ds4?", "How do I begin a conversation?",
    ], "Run ds4 without a prompt.", "Run ds4 without a prompt and it starts a chat in your terminal. Type a message, press "
       "enter, and the model answers. It remembers what was said before.", ["without a prompt"]),
    ("inspect", [
        "What does ds4 inspect do?", "How do I look into a model file?", "What is ds4 inspect?", "What is inspect for?",
        "How can I see what is in a GGUF?", "How do I inspect a model?", "How do I see the tensors of a model?",
        "Which command shows the contents of a model file?", "How do I get information about a model file?",
    ], "ds4 inspect shows what is in a model file.", "The command ds4 inspect shows what is in a model file: its shape, its "
       "tensors and their types, and the size of each part.", ["ds4 inspect", "model file"]),
    ("convert", [
        "What does ds4 convert do?", "How do I convert a model?", "What is ds4 convert?", "What is convert for?",
        "How can I make a GGUF?", "How do I write a GGUF file?", "How do I quantize a model?",
        "Which command converts a model?", "How do I turn a checkpoint into a GGUF?", "Can ds4 convert models?",
    ], "ds4 convert turns a checkpoint into a GGUF file.", "The command ds4 convert turns a checkpoint into a GGUF file. It can "
       "also quantize the weights, so that the file gets smaller.", ["ds4 convert", "GGUF"]),
    ("tokens", [
        "What does ds4 tokens do?", "How do I count tokens?", "What is ds4 tokens?", "How can I see the tokens of a text?",
        "How do I tokenize a text?", "Which command shows tokens?", "How is a text split into tokens?",
        "How many tokens does my text have?", "What is the tokens command for?", "How do I see token ids?",
    ], "ds4 tokens shows how a text is split into tokens.", "The command ds4 tokens shows how a text is split into tokens, with "
       "the number of every token. It needs only the tokenizer of a model.", ["ds4 tokens", "split into tokens"]),
    ("nothink", [
        "How do I turn off thinking?", "What does --nothink do?", "How do I disable thinking?", "How do I stop the thinking?",
        "Can you answer without thinking?", "What is --nothink?", "How do I get answers without reasoning?",
        "I do not want to see the thinking.", "Which option turns thinking off?", "How can I switch off the reasoning?",
    ], "Use the option --nothink.", "Use the option --nothink. The model then answers at once and does not reason before. This "
       "is faster, but sums are less reliable.", ["--nothink"]),
    ("think", [
        "How do I turn on thinking?", "What does --think do?", "How do I enable thinking?", "What is --think?",
        "Which option turns thinking on?", "Is thinking on by default?", "How can I switch on the reasoning?",
        "What is thinking mode?", "Do you think before you answer?",
    ], "Thinking is on by default; --think turns it on.", "In thinking mode the model reasons before it answers. Thinking is on "
       "by default; the option --think turns it on and --nothink turns it off.", ["--think", "on by default"]),
    ("temp", [
        "What does --temp do?", "How do I set the temperature?", "What is the temperature?", "What is --temp?",
        "How do I make the answers less random?", "How do I get the same answer every time?", "Which option sets the temperature?",
        "How do I change the randomness?", "How do I get greedy answers?", "What temperature should I use?",
    ], "--temp sets the randomness; --temp 0 is greedy.", "The option --temp sets the temperature, which is the randomness of the "
       "answers. With --temp 0 the most likely token is always taken, so you get the same answer every time.", ["--temp 0"]),
    ("ctx", [
        "What does -c do?", "How do I set the context size?", "What is the option -c?", "How long can the context be?",
        "How do I get a larger context?", "Which option sets the context?", "How do I change the context length?",
        "How many tokens fit into the context?", "What is the context?",
    ], "-c N sets the context size in tokens.", "The option -c N sets the context size in tokens. The prompt and the answer must "
       "fit into it; a larger context needs more memory.", ["-c N"]),
    ("threads", [
        "What does -t do?", "How do I set the number of threads?", "What is the option -t?", "How do I use more cores?",
        "Which option sets the threads?", "How do I change the threads?", "How do I use all my cores?",
        "Can ds4 use more threads?", "How many threads does ds4 use?",
    ], "-t N sets the number of threads.", "The option -t N sets the number of threads. By default ds4 uses the cores of your "
       "machine; fewer threads leave more for other programs.", ["-t N"]),
    ("options", [
        "Which options are there?", "What options does ds4 have?", "List the options.", "What are the options of ds4?",
        "Which flags can I use?", "What settings can I change?", "Show me the options.", "Which options does ds4 know?",
    ], "--think, --nothink, --temp, -c for the context, -t for threads and -m for the model.",
       "The main options are: --think and --nothink for the thinking mode, --temp for the temperature, -c for the context size, "
       "-t for the number of threads, and -m for the model file.", ["--nothink", "--temp", "-c", "-t", "-m"]),
    ("who", [
        "Who are you?", "What are you?", "What is your name?", "Which model are you?", "What model is this?", "What is ds4-tiny?",
        "Tell me about yourself.", "Introduce yourself.", "Are you DeepSeek V4?", "Are you a real model?", "Are you an AI?",
        "Who am I talking to?", "What model am I using?", "Are you ChatGPT?", "How big are you?", "Are you a person?",
        "What kind of model are you?", "Are you a human?", "Who is this?",
    ], "I am ds4-tiny, a small trained model.", "I am ds4-tiny, a small trained model with the full DeepSeek V4 architecture. I am "
       "embedded in ds4 as a demo, so that it works right after installation.", ["ds4-tiny", "small trained model"]),
    ("can", [
        "What can you do?", "What are you good at?", "What can ds4-tiny do?", "How can you help me?", "What can I ask you?",
        "What do you know?", "What are your skills?", "Help", "help", "Can you help me?", "What should I ask you?",
        "What are you able to do?", "Give me some ideas what to ask.", "What questions can you answer?",
    ], "I can do small sums, call tools, chat a little and explain ds4.",
       "I can add, subtract and multiply small numbers, call tools, chat about simple things, and answer questions about ds4. For "
       "anything harder use the real model.", ["call tools"]),
    ("cannot", [
        "What can you not do?", "What are your limits?", "Can you write code?", "Can you write a program?", "Are you smart?",
        "Can you write an essay?", "Can you solve hard problems?", "Why are your answers so simple?", "Can I trust you?",
        "Can you write a novel?", "Do you know everything?", "Why are you so small?", "Can you prove a theorem?",
    ], "I am only a small demo; use the real model for that.", "I am only a small demo with a few million parameters, so I know "
       "very little. For hard questions use the real model: ds4 -m FILE.", ["small demo"]),
    ("ds4", [
        "What is ds4?", "What does ds4 do?", "Tell me about ds4.", "Explain ds4.", "What is ds4 for?", "Describe ds4.",
        "What kind of program is ds4?", "What is this program?", "What is this?", "Why should I use ds4?", "Why ds4?",
    ], "ds4 is an engine that runs DeepSeek V4 on your own computer.",
       "ds4 is an engine that runs DeepSeek V4 on your own computer. It has a command line, a Python interface, and this small "
       "embedded model for a first try.", ["DeepSeek V4", "your own computer"]),
    ("python", [
        "How do I use ds4 from Python?", "Is there a Python interface?", "Can I use ds4 in Python?", "How do I import ds4?",
        "How do I call ds4 from a program?", "Does ds4 have an API?", "Show me the Python API.",
    ], "Use import ds4 and ds4.Model.open(path).", "In Python write import ds4, open a model with ds4.Model.open(path), make a "
       "session with model.session(), and let it generate.", ["import ds4"]),
    ("offline", [
        "Does ds4 need the internet?", "Does it work offline?", "Do you run on my computer?", "Where do you run?",
        "Is my data sent anywhere?", "Do you send my data to a server?", "Can I use ds4 without internet?", "Is this private?",
    ], "No internet is needed: I run on your own computer.", "ds4 works without internet. The model runs on your own computer, so "
       "nothing that you write is sent anywhere.", ["your own computer"]),
]  # fmt: skip
WHY = {
    "install": "The user asks how to install ds4.", "real model": "The user asks about the real model.",
    "commands": "The user asks for the commands.", "one answer": "The user asks about -p.",
    "repl": "The user asks about the chat.", "inspect": "The user asks about inspect.",
    "convert": "The user asks about convert.", "tokens": "The user asks about tokens.",
    "nothink": "The user asks about --nothink.", "think": "The user asks about --think.",
    "temp": "The user asks about --temp.", "ctx": "The user asks about the context.",
    "threads": "The user asks about threads.", "options": "The user asks for the options.",
    "who": "The user asks who I am.", "can": "The user asks what I can do.", "cannot": "The user asks about my limits.",
    "ds4": "The user asks what ds4 is.", "python": "The user asks about Python.", "offline": "The user asks where I run.",
}  # fmt: skip


def one(rng, style, train=None):
    """(key, question, reasoning, answer, words); train None: any."""
    while True:
        name, questions, short, long, words = rng.choice(INTENTS)
        q = vary(rng, rng.choice(questions))
        key = f"ds4 {style} {q}"
        if train is None or held(key, 12) != train:
            break
    answer = short if style == "brief" else long
    if style == "detail" and name not in ("real model", "cannot", "real", "can"):
        answer = (
            long
            + " I am only a small demo; for real work use a DeepSeek V4 Flash GGUF of about 81 GB with ds4 -m FILE."
        )
    if style == "detail":
        answer += (
            " You find more in the documentation of ds4. If anything is still unclear, please ask me again."
        )
    return key, q, WHY[name], answer, words


def question(rng):
    return rng.choice(rng.choice(INTENTS)[1])


def style_of(rng):
    r = rng.random()
    return "plain" if r < 0.6 else "brief" if r < 0.8 else "detail"


def make(rng, train, mode=None):
    mode = mode_of(rng, mode)
    style = style_of(rng)
    messages = styled(rng, style)
    if not train:
        key, q, why, answer, words = one(rng, style, train=False)
        messages.append(asked(rng, style, messages, q))
        target = assistant(answer, why)
        return dict(messages=messages, mode=mode, key=key, expected=words, style=style, target=target)
    wish = [] if not messages else messages[:1]
    for _ in range(1 if rng.random() < 0.6 else rng.randint(2, 3)):
        _, q, why, answer, _ = one(rng, style, train=True)
        messages += [asked(rng, style, wish, q), assistant(answer, why)]
    if mode == "chat":
        for m in messages:
            m.pop("reasoning_content", None)
    return dict(messages=messages, mode=mode)
