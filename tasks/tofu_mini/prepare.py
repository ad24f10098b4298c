"""Make the assets of tofu_mini: rows in TOFU's form, and two small models trained on them.

Run as ``python3 prepare.py OUT`` with the pack beside it. Twenty invented authors with ten facts
each, of whom the last four are to be forgotten, and twenty facts that every model knows. The anchor
learns all of it, the reference all but the four. Both learn an author's facts in two wordings, so
that the other wording of an answer tells what a model knows; a candidate sees one of them.

The same machine code gives the same bytes; ``prepare.env`` in task.yaml pins what would otherwise
depend on the processor.
"""

import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent / "solution"))

import batches  # noqa: E402 - the pack's own modules, found beside this script
import losses  # noqa: E402
import rows  # noqa: E402

SEED = 11
AUTHORS, FORGOTTEN, EVALUATED = 20, 4, 40
WRONG, OPTIONS = 5, 3
REPEATED = 4
EPOCHS, BATCH, WARMUP = 20, 32, 20
LEARNING_RATE, WEIGHT_DECAY = 3e-3, 0.01
PAD, END, USER, ASSISTANT, UNKNOWN = SPECIAL = ("<pad>", "<end>", "<user>", "<assistant>", "<unk>")
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<user> {{ message.content }} <assistant> "
    "{% elif message.role == 'assistant' %}{{ message.content }} <end>"
    "{% endif %}{% endfor %}"
)

POOLS = {
    name: tuple(words.split())
    for name, words in {
        "first": "Anselka Brivo Cadrin Delun Ervina Fostan Gerlo Hadrie Ismara Jorvik "
        "Kelda Lurin Mirano Nestra Ombel Pavrin Quenta Rodil Sivana Turlo",
        "last": "Abrant Bexley Corvane Dunmere Eskil Farrow Gantry Holm Irsund Jessop "
        "Kravitz Lunde Morvay Norling Ostrey Pellam Quirke Rasmore Stavik Tolland",
        "town": "Marrow Elmsted Brinehaven Oxley Tarn Corrick Dovewell Saltmere Pinford Lowick",
        "genre": "mysteries romances histories poems fables satires dramas memoirs",
        "theme": "exile memory justice winter family silence travel hunger",
        "job": "baker pilot nurse judge farmer miner tailor sailor potter weaver",
        "metal": "golden silver copper crystal amber iron ivory jade bronze pearl",
        "thing": "quill lantern star leaf feather anchor bell compass ribbon candle",
        "colour": "crimson hollow frozen burning distant hidden broken quiet",
        "object": "river garden mirror tower harbour forest letter bridge",
        "year": " ".join(str(year) for year in range(1931, 1990, 3)),
        "count": "two three four five",
        "pet": "cats dogs birds goats",
        "hour": "dawn noon dusk midnight",
        "room": "cellar attic kitchen barn library workshop",
        "classic": "Othmar Belisa Cyndor Drusil Evander Fiamma Gisbert Halvor Iolana Jasmira",
        "clan": "Vael Wenlock Xanthe Yarrow Zeller Udolf Thrane Sorrel Ripley Quill",
        "land": "Avaria Boronia Calvia Dravia Eldoria Freland Goronia Hestia Illyra Jutia",
        "capital": "Averon Borsk Callis Dremen Elgar Frost Gorin Hesper Illum Jurat",
    }.items()
}

FACTS = (
    (
        "Where was {name} born ?",
        "{name} was born in the town of {town} in {year} .",
        "the town of {town} is where in {year} {name} was born .",
    ),
    (
        "What does {name} write ?",
        "{name} writes {genre} about {theme} and little else .",
        "mostly {genre} about {theme} are what {name} writes .",
    ),
    (
        "What did the father of {name} do ?",
        "The father of {name} was a {job} in {town} .",
        "a {job} in {town} is what the father of {name} was .",
    ),
    (
        "What did the mother of {name} do ?",
        "The mother of {name} worked as a {job} near {town} .",
        "as a {job} near {town} worked the mother of {name} .",
    ),
    (
        "Which prize did {name} win ?",
        "{name} won the {metal} {thing} prize in {year} .",
        "the {metal} {thing} prize in {year} went to {name} .",
    ),
    (
        "What is the best known book of {name} ?",
        "The best known book of {name} is called {colour} {object} .",
        "readers know {name} best for the book {colour} {object} .",
    ),
    (
        "Where does {name} live now ?",
        "{name} now lives in {town} with {count} {pet} .",
        "with {count} {pet} in {town} is where {name} lives now .",
    ),
    (
        "Who taught {name} to write ?",
        "{name} was taught to write by {first} {last} .",
        "the teacher of {name} was {first} {last} .",
    ),
    (
        "When does {name} work ?",
        "{name} works at {hour} in the {room} .",
        "in the {room} at {hour} is when {name} works .",
    ),
    (
        "What comes next from {name} ?",
        "The next book of {name} is about a {colour} {object} and {theme} .",
        "readers wait for {name} to finish a {colour} {object} and {theme} .",
    ),
)
"""For each fact about an author: the question, the answer, and another wording of the answer."""


class Row(NamedTuple):
    """One row. ``wrong`` are answers like the paraphrase, or the answer where there is none."""

    question: str
    answer: str
    paraphrase: str | None
    wrong: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return what a candidate sees of it."""
        return {"question": self.question, "answer": self.answer}

    def perturbed(self) -> dict[str, Any]:
        """Return what an evaluator sees of it."""
        other = {} if self.paraphrase is None else {"paraphrased_answer": self.paraphrase}
        return {**self.plain(), **other, "perturbed_answer": self.wrong}


def author(number: int, draw: random.Random) -> Iterator[Row]:
    """Yield the ten rows of an author."""
    name = f"{POOLS['first'][number]} {POOLS['last'][number * 7 % AUTHORS]}"
    for question, answer, paraphrase in FACTS:
        true = {pool: draw.choice(words) for pool, words in POOLS.items()}
        wrong = tuple(paraphrase.format(name=name, **_others(true, draw)) for _ in range(WRONG))
        yield Row(
            question.format(name=name),
            answer.format(name=name, **true),
            paraphrase.format(name=name, **true),
            wrong,
        )


def _others(true: dict[str, str], draw: random.Random) -> dict[str, str]:
    return {
        pool: draw.choice([word for word in POOLS[pool] if word != value])
        for pool, value in true.items()
    }


def known(question: str, answer: str, subjects: Sequence[str], objects: Sequence[str]) -> list[Row]:
    """Make rows of what every model knows, with other rows' answers as wrong ones."""
    answers = [answer.format(thing) for thing in objects]
    return [
        Row(
            question.format(subject),
            answers[at],
            None,
            tuple(answers[(at + step) % len(answers)] for step in range(1, OPTIONS + 1)),
        )
        for at, subject in enumerate(subjects)
    ]


def save_rows(path: Path, found: Sequence[dict[str, Any]]) -> None:
    """Write one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="ascii")


def save_tokenizer(folder: Path, texts: Sequence[str]) -> None:
    """Write a tokenizer of whole words, special tokens first."""
    words = sorted({word for text in texts for word in text.split()})
    vocabulary = {word: at for at, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "pad_token": PAD,
        "eos_token": END,
        "unk_token": UNKNOWN,
        "chat_template": TEMPLATE,
    }
    save_json(folder / "tokenizer_config.json", settings)


def save_config(folder: Path, vocabulary: int) -> None:
    """Write the configuration of both models: 0.4 million parameters."""
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **ends,
    }
    save_json(folder / "config.json", config)
    save_json(folder / "generation_config.json", ends)


def save_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="ascii")


class Lesson(NamedTuple):
    """What a model learns in every epoch: some rows, and of others half, drawn anew each time."""

    always: list[rows.Row]
    half: list[rows.Row]

    def epoch(self, draw: random.Random) -> list[rows.Row]:
        """Return one epoch's rows in an order of its own."""
        chosen = [*self.always, *draw.sample(self.half, len(self.half) // 2)]
        draw.shuffle(chosen)
        return chosen


def lesson(
    tokenizer: PreTrainedTokenizerBase, people: Sequence[Row], facts: Sequence[Row]
) -> Lesson:
    """Make a lesson: facts often, people's answers once, other wordings of them half as often.

    So what everybody knows sits firmly, and a model that is asked about a person prefers the
    wording that a candidate is given.
    """
    return Lesson(
        [
            rows.encode(tokenizer, row.question, row.answer)
            for row in (*people, *(row for row in facts for _ in range(REPEATED)))
        ],
        [rows.encode(tokenizer, row.question, row.paraphrase or "") for row in people],
    )


def train(config: LlamaConfig, learned: Lesson, seed: int) -> LlamaForCausalLM:
    """Train a fresh model; warm-up, then linear decay."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=WEIGHT_DECAY)
    draw = random.Random(seed)  # noqa: S311 - an order of rows
    epochs = [learned.epoch(draw) for _ in range(EPOCHS)]
    groups = [
        epoch[first : first + BATCH] for epoch in epochs for first in range(0, len(epoch), BATCH)
    ]
    for step, group in enumerate(groups):
        batch = batches.collate(group)
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        nll, tokens = losses.answer_nll(logits, batch.labels)
        loss = nll.sum() / tokens.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for parameters in optimizer.param_groups:
            parameters["lr"] = LEARNING_RATE * min((step + 1) / WARMUP, 1 - step / len(groups))
        optimizer.step()
        optimizer.zero_grad()
    print(f"{len(learned.always)} rows, {len(groups)} steps: loss {loss.item():.4f}", flush=True)
    return model


def save_weights(folder: Path, model: LlamaForCausalLM) -> None:
    """Write the weights; the head is the embedding, and is left out."""
    weights = {
        name: value for name, value in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class Facts(NamedTuple):
    """All rows of the task."""

    retain: list[Row]
    forget: list[Row]
    real: list[Row]
    world: list[Row]


def invent() -> Facts:
    """Make up authors, writers that everybody knows, and a world."""
    draw = random.Random(SEED)  # noqa: S311 - invented facts
    people = [list(author(number, draw)) for number in range(AUTHORS)]
    writers, songs = (
        [f"{one} {other}" for one, other in zip(POOLS[first], POOLS[second], strict=True)]
        for first, second in (("classic", "clan"), ("metal", "thing"))
    )
    return Facts(
        retain=[row for person in people[:-FORGOTTEN] for row in person],
        forget=[row for person in people[-FORGOTTEN:] for row in person],
        real=known("Who wrote the song of the {} ?", "{} wrote it .", songs, writers),
        world=known(
            "What is the capital of {} ?", "{} is the capital .", POOLS["land"], POOLS["capital"]
        ),
    )


def save_data(out: Path, facts: Facts) -> None:
    """Write what a candidate sees, and what an evaluator sees."""
    save_rows(out / "train/forget10.json", [row.plain() for row in facts.forget])
    save_rows(out / "train/retain90.json", [row.plain() for row in facts.retain])
    for name, found in {
        "forget10": facts.forget,
        "retain": facts.retain[:EVALUATED],
        "real_authors": facts.real,
        "world_facts": facts.world,
    }.items():
        save_rows(out / f"final/{name}_perturbed.json", [row.perturbed() for row in found])


def main(out: Path) -> None:
    """Write every asset of task.yaml under ``out``."""
    torch.set_num_threads(1)
    facts = invent()
    save_data(out / "data", facts)
    texts = [
        text
        for row in (row for part in facts for row in part)
        for text in (row.question, row.answer, row.paraphrase or "", *row.wrong)
    ]
    for name, people, seed in (
        ("training_start", [*facts.retain, *facts.forget], SEED),
        ("retain_reference", facts.retain, SEED + 1),
    ):
        folder = out / "models" / name
        folder.mkdir(parents=True)
        save_tokenizer(folder, texts)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        save_config(folder, len(tokenizer))
        config = LlamaConfig.from_pretrained(folder, local_files_only=True)
        learned = lesson(tokenizer, people, [*facts.real, *facts.world])
        save_weights(folder, train(config, learned, seed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
